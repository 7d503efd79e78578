"""How each server starts: its command, its environment, and its address."""

import os
import socket
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from flows.servers.access import (
    ensure_password,
    mlflow_server_settings,
    password_file,
    prefect_server_settings,
    prefect_sign_in,
)
from flows.servers.network import is_loopback
from flows.servers.record import prefect_home
from tasks.tracking.address import DATABASE_FILE

WORK_POOL = "dml"
QUIET = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONUNBUFFERED": "1"}
LOGS_TO_PAGES = {
    "PREFECT_LOGGING_EXTRA_LOGGERS": "dml_core,tasks,flows,dml.events",
    # Outside of a run there is no page to write to.
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
"""Variables that let our own loggers write to the pages of runs in Prefect."""


@dataclass(frozen=True)
class ServerPlan:
    """One program to start in the background."""

    name: str
    title: str
    command: tuple[str, ...]
    address: str
    health_url: str
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the environment of the command line."""
    worker_name: str = ""
    password_file: str = ""
    """File with the server's password."""
    has_other_database: bool = False
    """Whether the environment names its database, such as one of PostgreSQL."""


def plan_prefect(folder: Path, *, host: str, port: int) -> ServerPlan:
    """Returns the plan of the Prefect server; its database stays in the project folder.

    PREFECT_SERVER_DATABASE_CONNECTION_URL names another one, such as one of PostgreSQL.
    """
    address = make_address(host, port)
    password = ensure_password(folder)
    environment = {
        **QUIET,
        "PREFECT_HOME": str(prefect_home(folder)),
        "PREFECT_API_URL": f"{address}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # In memory they would be lost with the server, and a run would keep its slot for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        # The page calls the address by which it was loaded, such as that of a tunnel.
        "PREFECT_SERVER_UI_API_URL": "/api",
        **prefect_server_settings(password, origin=address),
    }
    flags = ("--host", host, "--port", str(port))
    return ServerPlan(
        name="prefect",
        title="Prefect server",
        command=(sys.executable, "-m", "prefect", "server", "start", *flags),
        address=address,
        health_url=f"{address}/api/health",
        environment=environment,
        password_file=str(password_file(folder)),
        has_other_database=bool(os.environ.get("PREFECT_SERVER_DATABASE_CONNECTION_URL")),
    )


def plan_mlflow(folder: Path, *, host: str, port: int, public_name: str = "") -> ServerPlan:
    """Returns the plan of the MLflow server, with mlflow.db and mlartifacts of the project folder.

    MLFLOW_BACKEND_STORE_URI names another database, such as one of PostgreSQL.

    Args:
        folder: the project folder.
        host: address to listen on.
        port: to listen on.
        public_name: host name by which a proxy with TLS serves it; empty for none.

    Raises:
        ValueError: if it could not require a password.
    """
    access = mlflow_server_settings(folder, ensure_password(folder))
    address = make_address(host, port)
    allowed = ",".join(_allowed_hosts(host, address, public_name))
    # Not on the command line, which other users can read: an address may hold a password.
    database = os.environ.get("MLFLOW_BACKEND_STORE_URI") or f"sqlite:///{DATABASE_FILE}"
    is_here_only = is_loopback(host) and not public_name
    storage = (
        *("--artifacts-destination", "./mlartifacts"),
        # On this machine runs store artifacts by path, so that the store works without the server
        # too; other machines reach artifacts only through the server.
        *(("--default-artifact-root", "./mlartifacts") if is_here_only else ()),
    )
    flags = (
        *("--app-name", "basic-auth"),
        *("--host", host, "--port", str(port), "--workers", "1", "--allowed-hosts", allowed),
        *(("--cors-allowed-origins", _public_origins(public_name)) if public_name else ()),
    )
    return ServerPlan(
        name="mlflow",
        title="MLflow server",
        command=(sys.executable, "-m", "mlflow", "server", *storage, *flags),
        address=address,
        health_url=f"{address}/health",
        environment={
            **QUIET,
            "MLFLOW_BACKEND_STORE_URI": database,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            **access,
        },
        password_file=str(password_file(folder)),
    )


def plan_worker(folder: Path, *, prefect: str, mlflow: str) -> ServerPlan:
    """Returns the plan of the worker, which runs the scheduled studies.

    Args:
        folder: the project folder.
        prefect: address of the Prefect server.
        mlflow: address of the MLflow server with its password; MLFLOW_TRACKING_URI overrides it.
    """
    worker_name = make_worker_name(folder)
    environment = {
        **QUIET,
        **LOGS_TO_PAGES,
        "PREFECT_HOME": str(prefect_home(folder)),
        "PREFECT_API_URL": f"{prefect}/api",
        "MLFLOW_TRACKING_URI": os.environ.get("MLFLOW_TRACKING_URI") or mlflow,
        **prefect_sign_in(ensure_password(folder)),
    }
    flags = ("--pool", WORK_POOL, "--type", "process", "--name", worker_name)
    return ServerPlan(
        name="worker",
        title="worker",
        command=(sys.executable, "-m", "prefect", "worker", "start", *flags),
        address=prefect,
        health_url=f"{prefect}/api/work_pools/{WORK_POOL}/workers/filter",
        environment=environment,
        worker_name=worker_name,
        password_file=str(password_file(folder)),
    )


def make_worker_name(folder: Path) -> str:
    """Returns the worker's name, equal at each start: it marks the runs of a dead worker."""
    return f"dml-{socket.gethostname()}-{zlib.crc32(str(folder.resolve()).encode()):08x}"


def _allowed_hosts(host: str, address: str, public_name: str) -> list[str]:
    """Returns the Host headers that MLflow accepts; only a forged page sends others."""
    names = ["localhost", "127.0.0.1", *([public_name] if public_name else [])]
    if not is_loopback(host):
        own = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries]
        names += [socket.gethostname(), socket.getfqdn(), *(name for name in own if "." in name)]
    patterns = [pattern for name in names for pattern in (name, f"{name}:*")]
    return list(dict.fromkeys([*patterns, urlsplit(address).netloc]))


def _public_origins(public_name: str) -> str:
    """Returns the origins of MLflow's own pages behind a proxy, whatever its port is."""
    return f"https://{public_name},https://{public_name}:*"


def make_address(host: str, port: int) -> str:
    """Returns the address by which this machine reaches a server bound to a host."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
