"""dml run: the whole pipeline for one or several studies."""

import time
from pathlib import Path

from flows.commands.studies import study_names
from flows.commands.terminal import console, say
from flows.servers.connect import set_up_prefect
from tasks.study import StudyRequest, load_context
from tasks.sweep.lock import check_is_free
from tasks.versioning.stages import is_versioned, list_tracked


def run_studies_to_the_end(
    names: list[str],
    params: Path,
    assignments: list[str],
    *,
    profile: str | None,
    every: bool,
    force: bool,
    as_json: bool,
    watch: bool = False,
    promote: bool = False,
) -> None:
    """Runs what is stale of each study and prints the answers and where to look."""
    chosen = study_names() if every else names or ["main"]
    # Mistakes are found here too, before Prefect starts, so that they end in a short message.
    for name in chosen:
        request = StudyRequest(
            study=name, profile=profile, params=str(params), overrides=tuple(assignments)
        )
        check_is_free(load_context(request).working_folder)
        if is_versioned(request):
            list_tracked()
    wait_for_server = set_up_prefect()
    from flows.ablation import ablation

    wait_for_server()
    started = time.perf_counter()
    answers = ablation(
        studies=chosen,
        profile=profile,
        params=str(params),
        overrides=assignments,
        show="json" if as_json else "auto",
        force=force,
        promote=promote,
    )
    for answer in answers:
        if as_json:
            say(answer.model_dump_json())
            continue
        console.rule()
        say(answer.question)
        say(answer.text)
        if answer.claims:
            say(answer.claims_text)
        say(f"report:  {answer.report}")
        say(f"compare: {answer.compare_url}")
        if answer.watch:
            say(f"history: {answer.watch}")
    if not as_json:
        say(f"done in {time.perf_counter() - started:.0f} s")
    if watch and any(answer.has_dropped for answer in answers):
        raise SystemExit(1)
