"""dml disk and dml clean: what takes space, by study and kind, and how to free it."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    JsonOption,
    ParamsOption,
    ProfileOption,
    SetOption,
    StudyArgument,
    make_harmless,
    print_table,
    say,
)

if TYPE_CHECKING:
    from tasks.storage.usage import Usage

commands = typer.Typer()


@commands.command()
def disk(params: ParamsOption = DEFAULT_PARAMS, as_json: JsonOption = False) -> None:
    """Show what takes space, by study and kind."""
    from pathlib import Path

    from dml_core.config.loading import load_project_config
    from tasks.step_progress import shown_step
    from tasks.storage.cleaning import show_size
    from tasks.storage.usage import measure_usage, to_json

    with shown_step("measuring"):
        usage = measure_usage(load_project_config(params), Path())
    if as_json:
        print(to_json(usage))
        return
    _print_usage(usage)
    say(f"{show_size(usage.total)} in all. Free what a study takes with: dml clean STUDY")


@commands.command()
def clean(
    study: StudyArgument,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Kind that stays, as dml disk names it: trials, mlflow. Repeatable."),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also the report, its answer and the test scores.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Delete a study's trials and models; its report, answer and test scores stay.

    Shows what it would delete and asks first. DVC and MLflow forget what is deleted. Trials that
    another study names stay.
    """
    from dml_core.config.problems import suggest
    from flows.servers.connect import use_running_servers
    from tasks.step_progress import shown_step
    from tasks.storage.cleaning import clean as clean_up
    from tasks.storage.cleaning import plan_cleaning, show_size
    from tasks.storage.usage import KINDS
    from tasks.study import StudyRequest, load_context

    for kind in keep or []:
        if kind not in KINDS:
            raise ValueError(
                f"--keep must be one of {', '.join(KINDS)}. Got {kind!r}.{suggest(kind, KINDS)}"
            )
    request = StudyRequest(
        study=study, profile=profile, params=str(params), overrides=tuple(set_ or ())
    )
    use_running_servers()
    with shown_step("looking"):
        plan = plan_cleaning(load_context(request), keep=keep or [], everything=all_)
    if plan.is_empty:
        say(f"{request.folder_name} has nothing to delete")
        return
    say(f"dml clean deletes of {request.folder_name}:")
    for line in plan.describe():
        say(f"  {line}")
    if not yes and not typer.confirm(f"Delete these {show_size(plan.total)}?"):
        say("nothing was deleted")
        raise SystemExit(1)
    with shown_step("deleting"):
        clean_up(plan)
    say(f"{show_size(plan.total)} are free. dml run {study} trains the study again.")


def _print_usage(usage: "Usage") -> None:
    from rich.table import Table

    from tasks.storage.cleaning import show_size
    from tasks.storage.usage import KINDS, join_shared

    table = Table()
    table.add_column("study")
    for kind in (*KINDS, "together"):
        table.add_column(kind, justify="right")
    for each in usage.studies:
        sizes = [each.sizes.get(kind, 0) for kind in KINDS]
        table.add_row(
            make_harmless(each.name), *(show_size(s) if s else "" for s in (*sizes, each.total))
        )
    if usage.studies:
        print_table(table)
    for shared in join_shared(usage):
        say(f"{shared.what:26} {show_size(shared.size):>9}  {shared.path}")
