"""dml down: ends what dml up started."""

from pathlib import Path

from flows.commands.terminal import say
from flows.servers.background import stop_servers
from flows.servers.record import list_active_runs, load_records


def run_down(*, force: bool) -> None:
    """Ends the servers of this folder with all that they started, and nothing else.

    Raises:
        ValueError: when runs work with them, unless `force` is set.
    """
    folder = Path.cwd()
    check_nothing_runs(folder, force=force)
    ended = stop_servers(folder)
    for record in ended:
        say(f"{record.title} ended (process {record.pid})")
    if not ended:
        say("nothing to end: dml up started no server in this folder")


def check_nothing_runs(folder: Path, *, force: bool) -> None:
    """Raises ValueError when runs work with the servers of a folder; with `force` it warns."""
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
        "Others continue with a Prefect server of their own until they need MLflow; the same "
        "command resumes them."
    )
