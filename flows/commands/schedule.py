"""dml schedule, schedules, unschedule: studies that run by the clock."""

import json
from dataclasses import asdict
from pathlib import Path

from flows.commands.terminal import say
from flows.servers.schedules import create_schedule, delete_schedule, list_schedules


def run_schedule(study: str, *, cron: str, profile: str | None) -> None:
    """Schedules a study; one that is scheduled already gets the new time.

    The study and the time are checked first, as `dml check` does, and all problems told together:
    a mistake is to show now and not at night.
    """
    # Reading a study imports much that the other commands of this file do not need.
    from flows.commands.schedule_checks import check_request

    folder = Path.cwd()
    check_request(study, profile=profile, cron=cron, folder=folder)
    created = create_schedule(study, cron=cron, folder=folder, profile=profile)
    listed = ", ".join(f"{date:%Y-%m-%d %H:%M}" for date in created.next_dates)
    say(f"{study} runs by {cron!r}, next at {listed} UTC; at most one run at a time")
    if not created.has_worker:
        say("no worker is there, so that runs would wait. Run: dml up --worker")


def run_schedules(*, as_json: bool) -> None:
    """Prints what is scheduled, when it runs next and how it last went."""
    schedules = list_schedules(Path.cwd())
    if as_json:
        print(json.dumps({"schedules": [asdict(schedule) for schedule in schedules]}, indent=2))
        return
    for schedule in schedules:
        profile = f" with profile {schedule.profile}" if schedule.profile else ""
        state = "" if schedule.is_active else ", paused"
        say(
            f"{schedule.name:20} {', '.join(schedule.studies)}{profile}, by {schedule.cron!r} "
            f"{schedule.timezone}{state}, next {schedule.next_run or 'not planned yet'}, "
            f"last {schedule.last_run or 'none'}"
        )
    if not schedules:
        say('nothing is scheduled. Example: dml schedule main --cron "0 2 * * *"')


def run_unschedule(study: str) -> None:
    """Removes a study's schedule."""
    name = delete_schedule(study, folder=Path.cwd())
    say(f"{name} is no longer scheduled; a run that already works goes on")
