"""dml submit and dml stop: runs that a Ray cluster conducts, so that this machine may be closed."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    AddressOption,
    ParamsOption,
    ProfileOption,
    SetOption,
    StudyArgument,
    check_address,
    say,
)

_START_SECONDS = 60.0
commands = typer.Typer()


@commands.command()
def submit(
    studies: Annotated[list[str], typer.Argument(help="Names of studies.")],
    address: AddressOption = "",
    folder: Annotated[
        str, typer.Option(help="Folder of the project on the head; this folder by default.")
    ] = "",
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
) -> None:
    """Hand a run to a Ray cluster, which conducts it; this machine may be closed."""
    from tasks.study import StudyRequest, check_study_exists, load_context
    from tasks.submission import JobClient

    address = check_address(address)
    for study in studies:
        check_study_exists(study)
        load_context(
            StudyRequest(
                study=study, profile=profile, params=str(params), overrides=tuple(set_ or ())
            )
        )
    client = JobClient(address)
    job = client.submit(
        _make_command(studies, params=params, profile=profile, overrides=set_ or []),
        studies=studies,
        folder=folder or str(Path.cwd()),
    )
    run = client.wait(job, lambda run: run.status != "PENDING", seconds=_START_SECONDS)
    if run.status == "FAILED":
        raise ValueError(f"the run ended at once: {client.read_log(job).strip() or run.message}")
    say(f"{', '.join(studies)}: {run.status.lower()} on {address} as {job}")
    say(f"follow it:  dml logs {studies[0]} --address {address} --follow")
    say(f"stop it:    dml stop {studies[0]} --address {address}   (the same submit resumes it)")


@commands.command()
def stop(study: StudyArgument, address: AddressOption = "") -> None:
    """Stop a submitted run; it keeps its finished epochs, and `dml submit` resumes it."""
    from tasks.submission import JobClient

    client = JobClient(check_address(address))
    run = client.find(study)
    if run.has_ended:
        say(f"{run.job} has ended already: {run.status.lower()}")
        return
    ended = client.stop(run.job)
    if not ended.has_ended:
        raise ValueError(
            f"{run.job} was asked to stop and still works. See: dml logs {study} "
            f"--address {client.address}"
        )
    say(f"{run.job} {ended.status.lower()}; the same dml submit resumes it")


def _make_command(
    studies: list[str], *, params: Path, profile: str | None, overrides: list[str]
) -> list[str]:
    return [
        *("dml", "run", *studies),
        *(("--params", str(params)) if params != DEFAULT_PARAMS else ()),
        *(("--profile", profile) if profile else ()),
        *(word for setting in overrides for word in ("--set", setting)),
    ]
