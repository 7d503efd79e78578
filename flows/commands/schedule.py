"""dml schedule, schedules, unschedule: studies that run by the clock."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.terminal import JsonOption, StudyArgument, say

commands = typer.Typer()


@commands.command()
def schedule(
    study: StudyArgument,
    cron: Annotated[str, typer.Option(help='When, in UTC: "0 2 * * *" is every night at 2.')],
    profile: Annotated[
        str | None, typer.Option(help="Size to run the study with, such as smoke.")
    ] = None,
) -> None:
    """Run a study by the clock, one run at a time; replaces the study's previous schedule."""
    from flows.servers.schedules import create_schedule

    folder = Path.cwd()
    check_request(study, profile=profile, cron=cron, folder=folder)
    created = create_schedule(study, cron=cron, folder=folder, profile=profile)
    listed = ", ".join(f"{date:%Y-%m-%d %H:%M}" for date in created.next_dates)
    say(f"{study} runs by {cron!r}, next at {listed} UTC; at most one run at a time")
    if not created.has_worker:
        say("no worker is online, so that runs would wait. Run: dml up --worker")


@commands.command()
def schedules(as_json: JsonOption = False) -> None:
    """List the schedules with their next run and the result of the last one."""
    from flows.servers.schedules import list_schedules

    found = list_schedules(Path.cwd())
    if as_json:
        print(json.dumps({"schedules": [asdict(each) for each in found]}, indent=2))
        return
    for each in found:
        profile = f" with profile {each.profile}" if each.profile else ""
        state = "" if each.is_active else ", paused"
        say(
            f"{each.name:20} {', '.join(each.studies)}{profile}, by {each.cron!r} "
            f"{each.timezone}{state}, next {each.next_run or 'not planned yet'}, "
            f"last {each.last_run or 'none'}"
        )
    if not found:
        say('nothing is scheduled. Example: dml schedule main --cron "0 2 * * *"')


@commands.command()
def unschedule(study: StudyArgument) -> None:
    """Remove a study's schedule."""
    from flows.servers.schedules import delete_schedule

    name = delete_schedule(study, folder=Path.cwd())
    say(f"{name} is no longer scheduled; a run that already works continues")


def check_request(study: str, *, profile: str | None, cron: str, folder: Path) -> None:
    """Raises ValueError with every problem of a study and its time; changes no server.

    A mistake shows now, and not at night when the run comes due.
    """
    from flows.servers.schedules import check_cron
    from tasks.study import STUDIES_FOLDER, StudyRequest, check_study_exists, load_context

    problems: list[str] = []
    try:
        check_study_exists(study, folder / STUDIES_FOLDER)
        load_context(StudyRequest(study=study, profile=profile))
    except (ValueError, FileNotFoundError) as error:
        problems.append(str(error))
    try:
        check_cron(cron, folder=folder)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
