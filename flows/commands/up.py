"""dml up: the Prefect server and the MLflow server in the background."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from flows.commands.terminal import say
from flows.servers.access import USER
from flows.servers.background import start_servers
from flows.servers.network import is_loopback
from flows.servers.plans import WORK_POOL
from flows.servers.record import ServerRecord, load_records


def run_up(
    *,
    host: str,
    allow_remote: bool,
    prefect_port: int,
    mlflow_port: int,
    worker: bool,
    timeout_seconds: float,
) -> None:
    """Starts what is not up, waits until it answers, and prints where it is."""
    check_host(host, allow_remote=allow_remote)
    folder = Path.cwd()
    check_passwords(load_records(folder).values())
    before = set(load_records(folder))
    records = start_servers(
        folder,
        host=host,
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        with_worker=worker,
        timeout_seconds=timeout_seconds,
        on_message=say,
    )
    if set(records) == before:
        say("already up; other ports take effect after: dml down")
    print_addresses(records)


def check_host(host: str, *, allow_remote: bool) -> None:
    """Refuses to open the servers to other machines unless that is asked for in so many words."""
    if is_loopback(host):
        return
    danger = (
        f"with --host {host} everybody who can reach this machine and has the password can read "
        "all results, change them, and run programs on it; the password travels unencrypted"
    )
    if not allow_remote:
        raise ValueError(
            f"{danger}. Leave --host out and use an SSH tunnel (docs/operate.md), put a proxy with "
            f"TLS before the servers (deploy/README.md), or, in a network that you trust, add "
            f"--allow-remote: dml up --host {host} --allow-remote"
        )
    say(f"warning: {danger}.")


def check_passwords(records: Iterable[ServerRecord]) -> None:
    """Raises ValueError where a server is up that an older version started without a password."""
    for record in records:
        if not record.password_file:
            raise ValueError(
                f"the {record.title} that is up (process {record.pid}) asks for no password: it "
                "was started by an older version. Start it anew: dml down, then dml up"
            )


def print_addresses(records: dict[str, ServerRecord]) -> None:
    """Prints where the servers are, and the lines by which other programs find them."""
    for record in records.values():
        where = f"pool {WORK_POOL}" if record.worker_name else record.address
        say(f"{record.title:15} {where}  (process {record.pid})")
    prefect, mlflow = records["prefect"], records["mlflow"]
    if prefect.password_file:
        file = _show_path(prefect.password_file)
        say(f"Sign in to both pages as {USER}; the password is in {file}, for you alone.")
        say(f"  MLflow asks for user and password, Prefect for {USER}:PASSWORD")
    say("dml commands in this folder sign in by themselves. For other programs:")
    say(f"  export PREFECT_API_URL={prefect.address}/api")
    if prefect.password_file:
        say(f'  export PREFECT_API_AUTH_STRING="{USER}:$(cat {file})"')
    say(f"  export MLFLOW_TRACKING_URI={mlflow.address}")
    if mlflow.password_file:
        file = _show_path(mlflow.password_file)
        say(f'  export MLFLOW_TRACKING_USERNAME={USER} MLFLOW_TRACKING_PASSWORD="$(cat {file})"')
    say("End them with: dml down")


def _show_path(path: str) -> str:
    """Returns a path as it is typed in this folder."""
    try:
        return shlex.quote(str(Path(path).relative_to(Path.cwd().resolve())))
    except ValueError:
        return shlex.quote(path)
