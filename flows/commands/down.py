"""dml down: ends what dml up started."""

from pathlib import Path

from flows.commands.terminal import say
from flows.servers.background import stop_servers


def run_down() -> None:
    """Ends the servers of this folder with all that they started, and nothing else."""
    ended = stop_servers(Path.cwd())
    for record in ended:
        say(f"{record.title} ended (process {record.pid})")
    if not ended:
        say("nothing to end: dml up started no server in this folder")
