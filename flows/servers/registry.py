"""How commands find the servers that were started in their folder."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeGuard

from flows.servers.access import address_with_password, sign_in_to_prefect
from flows.servers.health import answers
from flows.servers.plans import prefect_home
from flows.servers.processes import find_process
from flows.servers.record import ServerRecord, load_records, make_state_folder
from tasks.owner_only import make_owner_only_folder

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

    Sets PREFECT_API_URL and MLFLOW_TRACKING_URI to servers that `dml up` started and that answer,
    with what signs in to them. Another server that the environment names is left alone.
    PREFECT_HOME is set also without servers, so that a run in between stays in the project folder
    and shows after the next `dml up`. Call it before prefect is imported, which reads its settings
    then.

    Returns:
        What was set.
    """
    wanted: dict[str, str] = {}
    if not os.environ.get("PREFECT_HOME"):
        make_state_folder(folder)
        wanted["PREFECT_HOME"] = str(make_owner_only_folder(prefect_home(folder)))
    records = load_records(folder)
    if _is_up(prefect := records.get("prefect")):
        wanted |= choose_prefect(prefect)
    if _is_up(mlflow := records.get("mlflow")):
        wanted |= choose_mlflow(mlflow)
    os.environ.update(wanted)
    return wanted


def choose_prefect(record: ServerRecord) -> dict[str, str]:
    """Returns the variables to set so that Prefect's clients use a server that was started.

    None where the environment names another one.
    """
    url = f"{record.address}/api"
    chosen = os.environ.get("PREFECT_API_URL")
    if not chosen:
        return {"PREFECT_API_URL": url, **sign_in_to_prefect(record)}
    if chosen.rstrip("/") == url and not os.environ.get("PREFECT_API_AUTH_STRING"):
        return sign_in_to_prefect(record)
    return {}


def choose_mlflow(record: ServerRecord) -> dict[str, str]:
    """Returns the variables to set so that runs use an MLflow server that was started.

    None where the environment names another one.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    is_this = chosen is not None and chosen.rstrip("/") == record.address
    if not chosen or (is_this and not os.environ.get("MLFLOW_TRACKING_USERNAME")):
        return {"MLFLOW_TRACKING_URI": address_with_password(record)}
    return {}


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


def _is_up(record: ServerRecord | None) -> TypeGuard[ServerRecord]:
    return record is not None and _lives(record) and answers(record)


def _lives(record: ServerRecord) -> bool:
    return find_process(record.pid, created=record.created) is not None
