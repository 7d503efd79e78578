"""Which servers a command uses: those of `dml up`, others by environment, or a private one."""

import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal, TypeGuard
from urllib.parse import urlsplit

from flows.interrupts import hide_mistakes_in_flows
from flows.servers.access import (
    address_with_password,
    authorization,
    prefect_sign_in,
    read_password,
    sign_in_to_prefect,
)
from flows.servers.network import NoAnswer, ask, fetch_status
from flows.servers.plans import LOGS_TO_PAGES
from flows.servers.private import PrivateServer
from flows.servers.record import (
    ServerRecord,
    load_records,
    make_state_folder,
    note_run,
    prefect_home,
)
from tasks.secrets import make_owner_only_folder

HERE = Path()
TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server", "worker": "worker"}
_QUIET = {
    "PREFECT_LOGGING_LEVEL": "WARNING",
    **LOGS_TO_PAGES,
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "DVC_NO_ANALYTICS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_HEALTH_TIMEOUT_SECONDS = 10.0
# The first start creates the database: 20 s here, longer on a busy machine.
_STARTUP_TIMEOUT_SECONDS = 180.0


@dataclass(frozen=True)
class ServerStatus:
    """The state of one server at this moment."""

    name: str
    title: str
    state: Literal["up", "not answering", "down"]
    address: str = ""
    pid: int | None = None
    since: str = ""
    """Start time in UTC, as ISO 8601."""
    log: str = ""


def list_statuses(folder: Path = HERE) -> list[ServerStatus]:
    """Returns the state of each server, including those that were never started."""
    records = load_records(folder)
    return [_get_status(name, records.get(name)) for name in TITLES]


def answers(record: ServerRecord, *, timeout_seconds: float = 2.0) -> bool:
    """Returns whether a server works, or whether the worker is online in its pool."""
    if record.worker_name:
        return _is_online(record, timeout_seconds=timeout_seconds)
    return fetch_status(record.health_url, timeout_seconds=timeout_seconds) == 200


def use_running_servers(folder: Path = HERE) -> dict[str, str]:
    """Points Prefect and MLflow of this process to the servers that run for a folder.

    Sets PREFECT_API_URL and MLFLOW_TRACKING_URI to servers that `dml up` started and that answer,
    with their credentials. Leaves another server of the environment alone. Sets PREFECT_HOME even
    without servers, so that a run in between stays in the project folder and shows after the next
    `dml up`. Call it before the import of prefect, which reads its settings then.

    Returns:
        The variables that were set.
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
    """Returns the variables that point Prefect's clients to a server of `dml up`.

    Empty if the environment names another one.
    """
    url = f"{record.address}/api"
    chosen = os.environ.get("PREFECT_API_URL")
    if not chosen:
        return {"PREFECT_API_URL": url, **sign_in_to_prefect(record)}
    if chosen.rstrip("/") == url and not os.environ.get("PREFECT_API_AUTH_STRING"):
        return sign_in_to_prefect(record)
    return {}


def choose_mlflow(record: ServerRecord) -> dict[str, str]:
    """Returns the variables that point runs to an MLflow server of `dml up`.

    Empty if the environment names another one.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    is_this = chosen is not None and chosen.rstrip("/") == record.address
    if not chosen or (is_this and not os.environ.get("MLFLOW_TRACKING_USERNAME")):
        return {"MLFLOW_TRACKING_URI": address_with_password(record)}
    return {}


def set_up_prefect() -> Callable[[], None]:
    """Points Prefect to the running server, or starts a private one; call before importing it.

    Prefect writes to `.dml/` of this folder only. Variables that the environment sets stay.

    Returns:
        A function that waits until the server answers: a private one starts in the background.

    Raises:
        ValueError: if PREFECT_API_URL names a server that does not answer or refuses us.
    """
    hide_mistakes_in_flows()
    use_running_servers()
    note_run(Path())
    for key, value in {"PREFECT_HOME": str(Path(".dml/prefect").absolute()), **_QUIET}.items():
        os.environ.setdefault(key, value)
    if address := os.environ.get("PREFECT_API_URL"):
        check_server_answers(address, remedy="Start one with `dml up`, or unset PREFECT_API_URL")
        outlive_server()
        return _silence_prefect
    return _start_private_server()


def check_server_answers(api_url: str, *, remedy: str) -> None:
    """Raises ValueError unless a Prefect server answers and accepts our credentials.

    Prefect's own client would retry for minutes.
    """
    url, limit = api_url.rstrip("/"), _HEALTH_TIMEOUT_SECONDS
    server = f"the Prefect server at {without_credentials(api_url)} (from PREFECT_API_URL)"
    if fetch_status(f"{url}/health", timeout_seconds=limit) != 200:
        raise ValueError(f"{server} does not answer. {remedy}.")
    status = fetch_status(f"{url}/admin/version", timeout_seconds=limit, headers=authorization())
    if status in (401, 403):
        raise ValueError(
            f"{server} requires a password. "
            "Set PREFECT_API_AUTH_STRING to the server's user:password."
        )


def without_credentials(url: str) -> str:
    """Returns an address without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@cache
def outlive_server() -> None:
    """Lets this process continue when its server of `dml up` goes away; acts once.

    A server on another machine, or with a database that is not in the project folder, cannot be
    replaced.
    """
    used = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    record = load_records(Path()).get("prefect")
    if record is None or used != f"{record.address}/api" or not record.password_file:
        return
    if record.has_other_database:
        return
    parts = urlsplit(record.address)
    if parts.hostname == "127.0.0.1" and parts.port:
        PrivateServer(
            Path(os.environ["PREFECT_HOME"]),
            password=read_password(Path(record.password_file)),
            port=parts.port,
            in_place_of=record.address,
        )


def _start_private_server() -> Callable[[], None]:
    password = secrets.token_urlsafe(24)
    server = PrivateServer(Path(os.environ["PREFECT_HOME"]), password=password)
    os.environ.update({"PREFECT_API_URL": server.api_url, **prefect_sign_in(password)})

    def wait() -> None:
        server.wait(timeout_seconds=_STARTUP_TIMEOUT_SECONDS)
        _silence_prefect()

    return wait


def _silence_prefect() -> None:
    """Mutes Prefect's line for each event that was not sent: our own line reports the loss."""
    for name in ("prefect.events.clients", "prefect._internal.concurrency"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _get_status(name: str, record: ServerRecord | None) -> ServerStatus:
    if record is None or not record.is_alive:
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
    return record is not None and record.is_alive and answers(record)


def _is_online(record: ServerRecord, *, timeout_seconds: float) -> bool:
    try:
        headers = authorization(sign_in_to_prefect(record))
        answer = ask(
            "POST", record.health_url, timeout_seconds=timeout_seconds, content={}, headers=headers
        )
    except (NoAnswer, ValueError):
        return False
    return answer.status == 200 and any(
        worker["name"] == record.worker_name
        and worker["status"] == "ONLINE"
        # The previous worker had the same name and counts as online for a while after its end.
        and datetime.fromisoformat(worker["last_heartbeat_time"]).timestamp() > record.created
        for worker in answer.content or []
    )
