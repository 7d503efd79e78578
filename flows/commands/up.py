"""dml up: the Prefect server and the MLflow server in the background."""

from pathlib import Path

from flows.commands.terminal import say
from flows.servers.background import start_servers
from flows.servers.plans import WORK_POOL
from flows.servers.ports import is_loopback
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
        f"with --host {host} everybody who can reach this machine can read all results, change "
        "them, and run programs on it: neither server asks who you are"
    )
    if not allow_remote:
        raise ValueError(
            f"{danger}. Leave --host out and use an SSH tunnel (docs/operate.md), or, in a network "
            f"that you trust, add --allow-remote: dml up --host {host} --allow-remote"
        )
    say(f"warning: {danger}.")


def print_addresses(records: dict[str, ServerRecord]) -> None:
    """Prints where the servers are, and the lines by which other programs find them."""
    for record in records.values():
        where = f"pool {WORK_POOL}" if record.worker_name else record.address
        say(f"{record.title:15} {where}  (process {record.pid})")
    say("dml commands in this folder use them by themselves. For other programs:")
    say(f"  export PREFECT_API_URL={records['prefect'].address}/api")
    say(f"  export MLFLOW_TRACKING_URI={records['mlflow'].address}")
    say("End them with: dml down")
