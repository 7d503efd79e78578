"""dml run and dml stage: the pipeline of one or several studies, whole or one stage of it."""

import logging
import time
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    JsonLinesOption,
    ParamsOption,
    ProfileOption,
    SetOption,
    console,
    say,
)

if TYPE_CHECKING:
    from prefect import Flow

    from tasks.report import Answer
    from tasks.study import StudyRequest

LOGGER = logging.getLogger(__name__)
commands = typer.Typer()


@commands.command()
def run(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Names of studies; main by default.")
    ] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Every study.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also stages that are up to date.")
    ] = False,
    as_json: JsonLinesOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="End with 1 if a score dropped significantly.")
    ] = False,
    promote: Annotated[
        bool, typer.Option("--promote", help="Accept the results; their models become champions.")
    ] = False,
    until_decided: Annotated[
        bool,
        typer.Option("--until-decided", help="Add seeds to arms whose verdict is open."),
    ] = False,
    most_seeds: Annotated[
        int | None, typer.Option(help="With --until-decided: most seeds of an arm; 20 by default.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="With --until-decided: add no seeds that would take longer.", min=0),
    ] = None,
) -> None:
    """Answer studies: prepare, sweep, evaluate, report; skip stages that are up to date."""
    from dml_core.studies.own_code_checks import check_own_code
    from dml_core.trials.ledger import check_is_free
    from flows.commands.studies import study_names
    from tasks.study import StudyRequest, load_context
    from tasks.versioning.stages import is_versioned, list_tracked

    if not until_decided and (most_seeds is not None or minutes is not None):
        raise ValueError("--most-seeds and --minutes limit --until-decided, which is missing.")
    chosen = study_names() if all_ else studies or ["main"]
    # Mistakes are found here too, before Prefect starts, so that they end in a short message.
    requests = [
        StudyRequest(study=name, profile=profile, params=str(params), overrides=tuple(set_ or ()))
        for name in chosen
    ]
    for request in requests:
        context = load_context(request)
        check_own_code(context.study)
        check_is_free(context.working_folder)
        if is_versioned(request):
            list_tracked()
    started = time.perf_counter()
    ablation = open_pipeline()
    answers = ablation(
        studies=chosen,
        profile=profile,
        params=str(params),
        overrides=set_ or [],
        show="json" if as_json else "auto",
        force=force,
        promote=promote,
        until_decided=until_decided,
        **({} if most_seeds is None else {"most_seeds": most_seeds}),
        minutes=minutes,
    )
    for answer, request in zip(answers, requests, strict=True):
        print_answer(answer, request, as_json=as_json)
    if not as_json:
        say(f"done in {time.perf_counter() - started:.0f} s")
    if watch and any(answer.has_dropped for answer in answers):
        raise SystemExit(1)


@commands.command(hidden=True)
def stage(
    name: Annotated[str, typer.Argument(help="prepare, sweep, evaluate or report.")],
    study: Annotated[str | None, typer.Argument(help="Name of a study.")] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
) -> None:
    """Run one stage, stale or not, as dvc.yaml does."""
    from flows.servers.connect import set_up_prefect
    from tasks.study import StudyRequest
    from tasks.versioning.installed_code import refresh_code
    from tasks.versioning.stages import (
        STAGES,
        begin_stage,
        check_origin,
        is_versioned,
        list_tracked,
        pin_run,
        track_study,
    )

    if name not in STAGES:
        raise ValueError(f"a stage must be one of {', '.join(STAGES)}. Got {name!r}.")
    if study is None and name != "prepare":
        raise ValueError(f"stage {name} needs the name of a study, as in: dml stage {name} main")
    request = StudyRequest(study=study or "main", params=str(params), overrides=tuple(set_ or ()))
    refresh_code()
    # A study without stages has no place in dvc.lock.
    is_known = name == "prepare" or not is_versioned(request) or request.study in list_tracked()
    if is_known and name != "prepare":
        # If the study has other images now, DVC finds out at the next call.
        track_study(request)
    pinned = pin_run(request, [name] if is_known else [])
    wait_for_server = set_up_prefect()
    from flows.ablation import STAGES as FLOWS

    wait_for_server()
    origin = begin_stage(name, pinned, on_wait=LOGGER.warning) if is_known else None
    FLOWS[name](pinned.request)
    check_origin(name, pinned.request, origin)


def open_pipeline() -> "Flow[..., list[Answer]]":
    """Returns the flow of all stages once its server answers, that of `dml up` or a private one."""
    from flows.servers.connect import set_up_prefect
    from tasks.step_progress import shown_step

    wait_for_server = set_up_prefect()
    with shown_step("starting Prefect"):
        from flows.ablation import ablation

        wait_for_server()
    return ablation


def print_answer(answer: "Answer", request: "StudyRequest", *, as_json: bool = False) -> None:
    """Prints an answer: the recommendation first, then a line an arm, and where to look."""
    from tasks.report_page.tables import make_command

    if as_json:
        say(answer.model_dump_json())
        return
    console().rule()
    say(answer.question)
    say(answer.text)
    if answer.claims:
        say(answer.claims_text)
    say(f"report:  {answer.report}")
    say(f"open:    {make_command(request, 'open')}")
    if answer.watch:
        say(f"history: {answer.watch}")
