"""How commands find the servers that were started in their folder."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from flows.servers.health import answers
from flows.servers.plans import prefect_home
from flows.servers.processes import find_process
from flows.servers.record import ServerRecord, load_records

HERE = Path()
TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server", "worker": "worker"}


@dataclass(frozen=True)
class ServerStatus:
    """How one server is at this moment."""

    name: str
    title: str
    state: Literal["up", "not answering", "down"]
    address: str = ""
    pid: int | None = None
    since: str = ""
    """When it started, in UTC, as ISO 8601."""
    log: str = ""


def use_running_servers(folder: Path = HERE) -> dict[str, str]:
    """Lets Prefect and MLflow of this process use the servers that run for a folder.

    Sets PREFECT_API_URL and MLFLOW_TRACKING_URI to servers that `dml up` started and that answer.
    What the environment already has is left alone. PREFECT_HOME is set also without servers, so
    that a run in between stays in the project folder and shows after the next `dml up`. Call it
    before prefect is imported, which reads its settings then.

    Returns:
        What was set.
    """
    found = {"PREFECT_HOME": str(prefect_home(folder))}
    records = load_records(folder)
    if _is_up(records.get("prefect")):
        found["PREFECT_API_URL"] = f"{records['prefect'].address}/api"
    if _is_up(records.get("mlflow")):
        found["MLFLOW_TRACKING_URI"] = records["mlflow"].address
    wanted = {name: value for name, value in found.items() if not os.environ.get(name)}
    if "PREFECT_HOME" in wanted:
        prefect_home(folder).mkdir(parents=True, exist_ok=True)
    os.environ.update(wanted)
    return wanted


def list_statuses(folder: Path = HERE) -> list[ServerStatus]:
    """Returns how each server is, also those that were never started."""
    records = load_records(folder)
    return [_look_at(name, records.get(name)) for name in TITLES]


def _look_at(name: str, record: ServerRecord | None) -> ServerStatus:
    if record is None or not _lives(record):
        log = record.log if record else ""
        return ServerStatus(name, TITLES[name], "down", log=log)
    return ServerStatus(
        name,
        record.title,
        "up" if answers(record) else "not answering",
        address=record.address,
        pid=record.pid,
        since=datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
        log=record.log,
    )


def _is_up(record: ServerRecord | None) -> bool:
    return record is not None and _lives(record) and answers(record)


def _lives(record: ServerRecord) -> bool:
    return find_process(record.pid, created=record.created) is not None
