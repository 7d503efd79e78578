"""The commands of `dml` around studies.

As in flows/cli.py, what a command needs is imported when it is called.
"""

from typing import Annotated

import typer

from flows.cli_options import DEFAULT_PARAMS, ParamsOption, ProfileOption, SetOption

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
    force: Annotated[bool, typer.Option("--force", help="Also what is up to date.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="End with 1 where a score dropped significantly.")
    ] = False,
    promote: Annotated[
        bool, typer.Option("--promote", help="Accept the results; their models become champions.")
    ] = False,
) -> None:
    """Answer studies: prepare, sweep, evaluate, report; what is up to date is left alone."""
    from flows.commands.run import run_studies_to_the_end

    run_studies_to_the_end(
        studies or [],
        params,
        set_ or [],
        profile=profile,
        every=all_,
        force=force,
        as_json=json,
        watch=watch,
        promote=promote,
    )


@commands.command()
def history(
    study: Annotated[str, typer.Argument(help="Name of a study, as in studies/NAME.yaml.")],
    params: ParamsOption = DEFAULT_PARAMS,
    profile: ProfileOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
) -> None:
    """Show what a study scored over time, by commit and data, and draw it."""
    from flows.commands.history import run_history

    run_history(study, params, profile=profile, as_json=json)


@commands.command()
def plan(
    studies: Annotated[list[str] | None, typer.Argument(help="Names of studies.")] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Every study, a line each.")] = False,
    images_per_second: Annotated[
        float | None,
        typer.Option(help="Training speed of the GPU, in the place of what is assumed.", min=0.01),
    ] = None,
) -> None:
    """List the trials of studies, what they would cost, and what is stale; run nothing.

    Where the data are prepared, the cost is measured on this machine. Where they are not, it is
    computed in GPU hours from published numbers.
    """
    from flows.commands.plan import run_plan

    run_plan(
        studies or [],
        params,
        set_ or [],
        profile=profile,
        every=all_,
        images_per_second=images_per_second,
    )


@commands.command()
def logs(
    study: Annotated[str, typer.Argument(help="Name of a study.")],
    trial: Annotated[
        str | None, typer.Argument(help="Only this trial, such as triplet-seed0.")
    ] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    profile: ProfileOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Every run that is kept.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show what happened in the newest run of a study: stages, trials, nodes, epochs, errors."""
    from flows.commands.logs import run_logs

    run_logs(study, trial, params=params, profile=profile, every=all_, follow=follow, as_json=json)


@commands.command(name="studies")
def list_studies() -> None:
    """List the studies with their questions."""
    from flows.commands.studies import run_studies

    run_studies()


@commands.command()
def check(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Names of studies; all by default.")
    ] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
) -> None:
    """Find every mistake in the parameters and studies, without running anything."""
    from flows.commands.studies import run_check

    run_check(studies or [], params, set_ or [])


@commands.command(hidden=True)
def stage(
    name: Annotated[str, typer.Argument(help="prepare, sweep, evaluate or report.")],
    study: Annotated[str | None, typer.Argument(help="Name of a study.")] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
) -> None:
    """Run one stage of the pipeline, as dvc.yaml does."""
    from flows.commands.stage import run_stage

    run_stage(name, study, params, set_ or [])
