"""dml run: the whole pipeline for one or several studies."""

import time
from pathlib import Path

from flows.commands.studies import study_names
from flows.commands.terminal import console, say
from flows.environment import use_quiet_prefect


def run_studies_to_the_end(
    names: list[str],
    params: Path,
    assignments: list[str],
    *,
    profile: str | None,
    every: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Runs what is stale of each study and prints the answers and where to look."""
    use_quiet_prefect()
    from flows.ablation import ablation

    started = time.perf_counter()
    answers = ablation(
        studies=study_names() if every else names or ["main"],
        profile=profile,
        params=str(params),
        overrides=assignments,
        show="json" if as_json else "auto",
        force=force,
    )
    for answer in answers:
        if as_json:
            say(answer.model_dump_json())
            continue
        console.rule()
        say(answer.question)
        say(answer.text)
        say(f"report:  {answer.report}")
        say(f"compare: {answer.compare_url}")
    if not as_json:
        say(f"done in {time.perf_counter() - started:.0f} s")
