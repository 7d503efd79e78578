"""dml up, status, down, users: the servers and the worker in the background, and their users."""

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import JsonOption, say

if TYPE_CHECKING:
    from flows.servers.connect import ServerStatus
    from flows.servers.record import ServerRecord

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
commands = typer.Typer()


@commands.command()
def up(
    worker: Annotated[
        bool, typer.Option("--worker", help="Also start the worker, which runs scheduled studies.")
    ] = False,
    prefect_port: Annotated[
        int, typer.Option(help="Port of the Prefect server; 0 takes a free one.", min=0, max=65535)
    ] = 4200,
    mlflow_port: Annotated[
        int, typer.Option(help="Port of the MLflow server; 0 takes a free one.", min=0, max=65535)
    ] = 5000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Needed for a --host that other machines reach."),
    ] = False,
    public_name: Annotated[
        str,
        typer.Option(help="Host name by which your proxy with TLS serves both (deploy/proxy)."),
    ] = "",
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until the servers answer.", min=1)
    ] = 120.0,
) -> None:
    """Start the Prefect and the MLflow server in the background; both require a password.

    The first start creates the password in .dml/password, which only you can read.
    """
    from flows.servers.background import start_servers
    from flows.servers.record import load_records

    check_host(host, allow_remote=allow_remote)
    check_public_name(public_name)
    folder = Path.cwd()
    before = load_records(folder)
    _check_passwords(before.values())
    records = start_servers(
        folder,
        host=host,
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        with_worker=worker,
        timeout_seconds=timeout,
        on_message=say,
        public_name=public_name,
    )
    if set(records) == set(before):
        say("already up; other ports take effect after: dml down")
    _print_addresses(records)


@commands.command()
def status(as_json: JsonOption = False) -> None:
    """Show the state of the servers; ends with 1 unless both are up."""
    from flows.servers.connect import list_statuses

    statuses = list_statuses(Path.cwd())
    if as_json:
        print(json.dumps({"servers": [asdict(each) for each in statuses]}, indent=2))
    else:
        for each in statuses:
            say(_describe(each))
        _advise(statuses)
    if any(each.state != "up" for each in statuses if each.name != "worker"):
        raise SystemExit(1)


@commands.command()
def down(
    force: Annotated[
        bool, typer.Option("--force", help="Also while runs of this folder use the servers.")
    ] = False,
) -> None:
    """End the servers that `dml up` started in this folder; refused while runs use them."""
    from flows.servers.background import stop_servers

    folder = Path.cwd()
    _check_nothing_runs(folder, force=force)
    ended = stop_servers(folder)
    for record in ended:
        say(f"{record.title} ended (process {record.pid})")
    if not ended:
        say("nothing to end: dml up started no server in this folder")


@commands.command()
def users(
    add: Annotated[
        str | None, typer.Option("--add", help="Create this user of the MLflow server.")
    ] = None,
    remove: Annotated[str | None, typer.Option("--remove", help="Remove this user.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List, add or remove users of the MLflow server; each has a password in a file."""
    from flows.servers.users import add_user, list_users, remove_user

    folder = Path.cwd()
    if add is not None:
        file = _show_path(str(add_user(folder, add)))
        say(f"{add} reads all runs and changes only experiments that {add} created")
        say(f"the password is in {file}; hand the file over. To sign in:")
        say(f"  export MLFLOW_TRACKING_USERNAME={add} MLFLOW_TRACKING_PASSWORD_FILE={file}")
    if remove is not None:
        remove_user(folder, remove)
        say(f"{remove} is removed; the runs stay")
    if as_json:
        print(json.dumps({"users": list_users(folder)}, indent=2))
    elif add is None and remove is None:
        for name in list_users(folder):
            say(name)


def check_host(host: str, *, allow_remote: bool) -> None:
    """Raises ValueError for a host that other machines reach, unless `allow_remote` is set."""
    from flows.servers.network import is_loopback

    if is_loopback(host):
        return
    danger = (
        f"with --host {host} everyone who can reach this machine and has the password can read "
        "all results, change them, and run programs on it; the password travels unencrypted"
    )
    if not allow_remote:
        raise ValueError(
            f"{danger}. Leave --host out and use an SSH tunnel (docs/operate.md), put a proxy with "
            "TLS before the servers (--public-name, deploy/proxy/README.md), or, in a network that "
            f"you trust, add --allow-remote: dml up --host {host} --allow-remote"
        )
    say(f"warning: {danger}.")


def check_public_name(name: str) -> None:
    """Raises ValueError for a text that is no host name."""
    if name and not _HOST_NAME.fullmatch(name):
        raise ValueError(
            "--public-name must be the host name of the proxy, without https:// and port, as in "
            f"team.example.com. Got {name!r}."
        )


def _check_passwords(records: "Iterable[ServerRecord]") -> None:
    """Raises ValueError if an older version started a server without a password."""
    for record in records:
        if not record.password_file:
            raise ValueError(
                f"the {record.title} that is up (process {record.pid}) requires no password: an "
                "older version started it. Start it again: dml down, then dml up"
            )


def _print_addresses(records: "dict[str, ServerRecord]") -> None:
    """Prints the addresses of the servers, and the variables for other programs."""
    from flows.servers.access import USER
    from flows.servers.plans import WORK_POOL

    for record in records.values():
        where = f"pool {WORK_POOL}" if record.worker_name else record.address
        say(f"{record.title:15} {where}  (process {record.pid})")
    prefect, mlflow = records["prefect"], records["mlflow"]
    if prefect.password_file:
        file = _show_path(prefect.password_file)
        say(f"Sign in to both pages as {USER}; the password is in {file}, for you alone.")
        say(f"  MLflow requests user and password, Prefect requests {USER}:PASSWORD")
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
    """Returns a path relative to this folder, quoted for a shell."""
    try:
        return shlex.quote(str(Path(path).relative_to(Path.cwd().resolve())))
    except ValueError:
        return shlex.quote(path)


def _describe(status: "ServerStatus") -> str:
    line = f"{status.title:15} {status.state:14}"
    if status.state == "down":
        return line.rstrip()
    return f"{line} {status.address}  process {status.pid}, since {status.since}"


def _advise(statuses: "list[ServerStatus]") -> None:
    states = {status.name: status.state for status in statuses}
    for status in statuses:
        if status.state == "not answering":
            say(f"the {status.title} runs but does not answer; see {status.log}")
    if "down" in (states["prefect"], states["mlflow"]):
        say("start them with: dml up")
    elif states["worker"] == "down":
        say("scheduled runs need the worker: dml up --worker")


def _check_nothing_runs(folder: Path, *, force: bool) -> None:
    """Raises ValueError if runs use the servers of a folder; with `force` it warns."""
    from flows.servers.record import list_active_runs, load_records

    runs = list_active_runs(folder) if load_records(folder) else []
    if not runs:
        return
    named = "; ".join(run.describe() for run in runs)
    if not force:
        raise ValueError(
            f"the servers are in use by {len(runs)} run(s): {named}. Wait for their end, or stop "
            "them first (Ctrl-C; the same command resumes them). To end the servers all the same: "
            "dml down --force"
        )
    say(
        f"warning: {len(runs)} run(s) use these servers: {named}. Runs of the worker are ended. "
        "Others continue with a private Prefect server until they need MLflow; the same command "
        "resumes them."
    )
