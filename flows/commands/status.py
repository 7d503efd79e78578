"""dml status: which servers are up."""

import json
from dataclasses import asdict
from pathlib import Path

from flows.commands.terminal import say
from flows.servers.connect import ServerStatus, list_statuses


def run_status(*, as_json: bool) -> None:
    """Prints how each server is; ends with 1 unless both servers are up."""
    statuses = list_statuses(Path.cwd())
    if as_json:
        print(json.dumps({"servers": [asdict(status) for status in statuses]}, indent=2))
    else:
        for status in statuses:
            say(_describe(status))
        _advise(statuses)
    if any(status.state != "up" for status in statuses if status.name != "worker"):
        raise SystemExit(1)


def _describe(status: ServerStatus) -> str:
    line = f"{status.title:15} {status.state:14}"
    if status.state == "down":
        return line.rstrip()
    return f"{line} {status.address}  process {status.pid}, since {status.since}"


def _advise(statuses: list[ServerStatus]) -> None:
    states = {status.name: status.state for status in statuses}
    for status in statuses:
        if status.state == "not answering":
            say(f"the {status.title} lives but does not answer; see {status.log}")
    if "down" in (states["prefect"], states["mlflow"]):
        say("start them with: dml up")
    elif states["worker"] == "down":
        say("scheduled runs need the worker: dml up --worker")
