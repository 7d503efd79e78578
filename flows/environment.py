"""Sets up Prefect for a command: quiet, in this folder, on the server that is up, or on none."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

_QUIET = {
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "DVC_NO_ANALYTICS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_HEALTH_TIMEOUT_SECONDS = 10.0
# A first start makes its database, which takes 20 s here and longer on a busy machine.
_STARTUP_TIMEOUT_SECONDS = 180.0


def use_quiet_prefect() -> Callable[[], None]:
    """Points Prefect to the running server, or to a private one; call before importing it.

    Everything that Prefect writes stays in `.dml/` of this folder, and what the environment says
    already is left as it is.

    Returns:
        What waits until the server can be used: a private one comes up meanwhile.

    Raises:
        ValueError: when PREFECT_API_URL names a server that does not answer.
    """
    from flows.servers.registry import use_running_servers

    use_running_servers()
    for key, value in {"PREFECT_HOME": str(Path(".dml/prefect").absolute()), **_QUIET}.items():
        os.environ.setdefault(key, value)
    if address := os.environ.get("PREFECT_API_URL"):
        _check_server_answers(address)
        return lambda: None
    return _start_private_server()


def _start_private_server() -> Callable[[], None]:
    from flows.servers.private import PrivateServer

    server = PrivateServer(Path(os.environ["PREFECT_HOME"]))
    os.environ["PREFECT_API_URL"] = server.api_url
    return partial(server.wait, timeout_seconds=_STARTUP_TIMEOUT_SECONDS)


def _check_server_answers(address: str) -> None:
    """Asks the server itself: Prefect's client would retry for minutes before it gives up."""
    from flows.servers.health import fetch_status

    health = f"{address.rstrip('/')}/health"
    if fetch_status(health, timeout_seconds=_HEALTH_TIMEOUT_SECONDS) != 200:
        parts = urlsplit(address)
        shown = f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}"
        raise ValueError(
            f"the Prefect server that PREFECT_API_URL names does not answer: {shown}. "
            "Start one with `dml up`, or unset PREFECT_API_URL to run without a server."
        )
