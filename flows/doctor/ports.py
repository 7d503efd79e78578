"""The ports that `dml up` would listen on."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from flows.doctor.findings import Finding, broken, ok, warning
from flows.servers.network import BusyPortError, check_port_is_free, find_free_port
from flows.servers.record import ServerRecord

DEFAULT_PORTS = {"prefect": 4200, "mlflow": 5000}
TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server"}
HOST = "127.0.0.1"


def check_ports(
    wanted: Mapping[str, int | None], records: Mapping[str, ServerRecord]
) -> list[Finding]:
    """Tells whether the servers could start on their ports.

    Args:
        wanted: for each server the port that was asked for; None takes the one of `dml up`, which
            need not be free, since nothing but `dml up` uses it.
        records: what `dml up` has started here already; its ports are its own.
    """
    try:
        find_free_port(HOST)
    except ValueError as error:
        return [broken("ports", str(error), "Free some ports, or raise ip_local_port_range")]
    missing = {
        name: port
        for name, port in wanted.items()
        if name not in records or port not in (None, urlsplit(records[name].address).port)
    }
    if not missing:
        return [ok("ports", "the servers of dml up have theirs")]
    return [_check_port(name, port) for name, port in missing.items()]


def _check_port(name: str, wanted: int | None) -> Finding:
    port = DEFAULT_PORTS[name] if wanted is None else wanted
    title = TITLES[name]
    try:
        check_port_is_free(port, host=HOST, title=title, option=f"--{name}-port")
    except BusyPortError as error:
        message, _, remedy = str(error).partition(". Choose another port: ")
        state = warning if wanted is None else broken
        return state("ports", message, f"Choose another port: {remedy}")
    return ok("ports", f"port {port} is free for the {title}")
