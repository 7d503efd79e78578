"""Sets up Prefect for a command: quiet, in this folder, on the server that is up, or on none."""

import logging
import os
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from flows.interrupts import hide_mistakes_in_flows

_QUIET = {
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "DVC_NO_ANALYTICS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HEALTH_TIMEOUT_SECONDS = 10.0
# A first start makes its database, which takes 20 s here and longer on a busy machine.
_STARTUP_TIMEOUT_SECONDS = 180.0


def keep_loopback_off_proxies() -> None:
    """Lets no program from here on reach this machine's own servers through a proxy.

    A proxy of the environment does not reach them. What the user excluded stays excluded.
    """
    excluded = [os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    names = [name.strip() for text in excluded for name in text.split(",") if name.strip()]
    value = ",".join(dict.fromkeys([*names, *_LOOPBACK]))
    # Some libraries read the one, some the other.
    os.environ.update({"no_proxy": value, "NO_PROXY": value})


def use_quiet_prefect() -> Callable[[], None]:
    """Points Prefect to the running server, or to a private one; call before importing it.

    Everything that Prefect writes stays in `.dml/` of this folder, and what the environment says
    already is left as it is.

    Returns:
        What waits until the server can be used: a private one comes up meanwhile.

    Raises:
        ValueError: when PREFECT_API_URL names a server that does not answer.
    """
    from flows.servers.living_runs import note_run
    from flows.servers.registry import use_running_servers

    hide_mistakes_in_flows()
    use_running_servers()
    note_run(Path())
    for key, value in {"PREFECT_HOME": str(Path(".dml/prefect").absolute()), **_QUIET}.items():
        os.environ.setdefault(key, value)
    if address := os.environ.get("PREFECT_API_URL"):
        _check_server_answers(address)
        outlive_server()
        return _keep_prefect_silent
    return _start_private_server()


def _start_private_server() -> Callable[[], None]:
    from flows.servers.access import prefect_sign_in
    from flows.servers.private import PrivateServer

    password = secrets.token_urlsafe(24)
    server = PrivateServer(Path(os.environ["PREFECT_HOME"]), password=password)
    os.environ.update({"PREFECT_API_URL": server.api_url, **prefect_sign_in(password)})

    def wait() -> None:
        server.wait(timeout_seconds=_STARTUP_TIMEOUT_SECONDS)
        _keep_prefect_silent()

    return wait


@cache
def outlive_server() -> None:
    """Lets this process continue when the server of `dml up` that it uses is gone; once.

    A server on another machine cannot be replaced.
    """
    from flows.servers.access import read_password
    from flows.servers.private import PrivateServer
    from flows.servers.record import load_records

    used = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    record = load_records(Path()).get("prefect")
    if record is None or used != f"{record.address}/api" or not record.password_file:
        return
    parts = urlsplit(record.address)
    if parts.hostname == "127.0.0.1" and parts.port:
        PrivateServer(
            Path(os.environ["PREFECT_HOME"]),
            password=read_password(Path(record.password_file)),
            port=parts.port,
            in_place_of=record.address,
        )


def _keep_prefect_silent() -> None:
    """Leaves a lost connection to our own line: Prefect prints each event that was not sent."""
    for name in ("prefect.events.clients", "prefect._internal.concurrency"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _check_server_answers(address: str) -> None:
    """Asks the server itself: Prefect's client would retry for minutes before it gives up."""
    from flows.servers.access import authorization
    from flows.servers.health import fetch_status

    url, limit = address.rstrip("/"), _HEALTH_TIMEOUT_SECONDS
    parts = urlsplit(address)
    shown = f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}"
    if fetch_status(f"{url}/health", timeout_seconds=limit) != 200:
        raise ValueError(
            f"the Prefect server that PREFECT_API_URL names does not answer: {shown}. "
            "Start one with `dml up`, or unset PREFECT_API_URL to run without a server."
        )
    status = fetch_status(f"{url}/admin/version", timeout_seconds=limit, headers=authorization())
    if status in (401, 403):
        raise ValueError(
            f"the Prefect server that PREFECT_API_URL names asks for a password: {shown}. "
            "Set PREFECT_API_AUTH_STRING to user:password as the server has it."
        )
