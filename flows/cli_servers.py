"""The commands of `dml` around servers and schedules.

As in flows/cli.py, what a command needs is imported when it is called.
"""

from typing import Annotated

import typer

from flows.cli_options import DEFAULT_PARAMS, ParamsOption, ProfileOption, SetOption

commands = typer.Typer()

StudyArgument = Annotated[str, typer.Argument(help="Name of a study, as in studies/NAME.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@commands.command()
def up(
    worker: Annotated[
        bool, typer.Option("--worker", help="Also start the worker that runs what is scheduled.")
    ] = False,
    prefect_port: Annotated[
        int, typer.Option(help="Port of the Prefect server; 0 takes a free one.", min=0, max=65535)
    ] = 4200,
    mlflow_port: Annotated[
        int, typer.Option(help="Port of the MLflow server; 0 takes a free one.", min=0, max=65535)
    ] = 5000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Needed for a --host that other machines reach."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until the servers answer.", min=1)
    ] = 120.0,
) -> None:
    """Start the Prefect and the MLflow server in the background; both ask for a password.

    The password is made at the first start. It is in .dml/password, which only you can read.
    """
    from flows.commands.up import run_up

    run_up(
        host=host,
        allow_remote=allow_remote,
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        worker=worker,
        timeout_seconds=timeout,
    )


@commands.command()
def status(json: JsonOption = False) -> None:
    """Show which servers are up; ends with 1 unless both are."""
    from flows.commands.status import run_status

    run_status(as_json=json)


@commands.command()
def down(
    force: Annotated[
        bool, typer.Option("--force", help="Also while runs of this folder use the servers.")
    ] = False,
) -> None:
    """End what `dml up` started in this folder, and nothing else; refused while runs use it."""
    from flows.commands.down import run_down

    run_down(force=force)


@commands.command()
def doctor(
    study: Annotated[str, typer.Argument(help="The study whose plan is looked at.")] = "main",
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds that one check may take; all run at once.", min=1)
    ] = 60.0,
    only: Annotated[
        list[str] | None, typer.Option(help="Check this subject alone. May be repeated.")
    ] = None,
    prefect_port: Annotated[
        int | None,
        typer.Option(help="Port that `dml up` shall find free.", min=1, max=65535),
    ] = None,
    mlflow_port: Annotated[
        int | None,
        typer.Option(help="Port that `dml up` shall find free.", min=1, max=65535),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check all that a run needs, with a remedy for each problem; ends with 1 if one is broken."""
    from flows.commands.doctor import run_doctor
    from tasks.study import StudyRequest

    run_doctor(
        StudyRequest(study=study, profile=profile, params=str(params), overrides=tuple(set_ or [])),
        timeout_seconds=timeout,
        ports={"prefect": prefect_port, "mlflow": mlflow_port},
        only=only or [],
        as_json=json,
    )


@commands.command()
def schedule(
    study: StudyArgument,
    cron: Annotated[str, typer.Option(help='When, in UTC: "0 2 * * *" is every night at 2.')],
    profile: Annotated[str | None, typer.Option(help="Sizes to run it with, as smoke.")] = None,
) -> None:
    """Let a study run by the clock; at most one run at a time."""
    from flows.commands.schedule import run_schedule

    run_schedule(study, cron=cron, profile=profile)


@commands.command()
def schedules(json: JsonOption = False) -> None:
    """List what is scheduled, when it runs next and how it last went."""
    from flows.commands.schedule import run_schedules

    run_schedules(as_json=json)


@commands.command()
def unschedule(study: StudyArgument) -> None:
    """Remove a study's schedule."""
    from flows.commands.schedule import run_unschedule

    run_unschedule(study)
