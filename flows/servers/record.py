"""State in .dml/: the servers that `dml up` started, and the runs that use them.

Each run leaves a note with its pid and start time in .dml/runs/. A note without such a process
belongs to a run that was killed.
"""

import atexit
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from flows.servers.processes import find_process
from tasks.secrets import make_owner_only_file, make_owner_only_folder, redact

STATE_FOLDER = Path(".dml")
VERSION = 1
_RUNS_FOLDER = "runs"


@dataclass(frozen=True)
class ServerRecord:
    """One program in the background."""

    name: str
    """prefect, mlflow or worker."""
    title: str
    """Its name in messages."""
    pid: int
    created: float
    """Start time of the process, in seconds since 1970; with the pid it identifies the process."""
    address: str
    """URL for a browser; for the worker, that of its Prefect server."""
    health_url: str
    """Answers 200 when the server works; for the worker, the list of workers of its pool."""
    log: str
    """File with its output."""
    worker_name: str = ""
    """Name of the worker in the pool; empty for servers."""
    password_file: str = ""
    """File with the server's password; empty if it has none."""
    has_other_database: bool = False
    """Whether the environment names its database, such as one of PostgreSQL."""

    @property
    def is_alive(self) -> bool:
        """Whether its process still runs."""
        return find_process(self.pid, created=self.created) is not None


@dataclass(frozen=True)
class ActiveRun:
    """One run that works now."""

    pid: int
    created: float
    """Start time of the process, in seconds since 1970; with the pid it identifies the process."""
    what: str
    """Its command line, or the scheduled studies."""

    def describe(self) -> str:
        """Returns the command, the process and its start, for a message."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.created))
        return f"{self.what} (process {self.pid}, since {since})"


def state_folder(folder: Path) -> Path:
    """Returns the folder that holds all background state of a project folder."""
    return folder.resolve() / STATE_FOLDER


def make_state_folder(folder: Path) -> Path:
    """Makes that folder if it is missing, closes it to other users, and returns it."""
    return make_owner_only_folder(state_folder(folder))


def prefect_home(folder: Path) -> Path:
    """Returns the folder of Prefect's files, so that none get into the user's home."""
    return state_folder(folder) / "prefect"


def load_records(folder: Path) -> dict[str, ServerRecord]:
    """Returns the programs that were started in a project folder, by name.

    Raises:
        ValueError: if the record is damaged.
    """
    path = state_folder(folder) / "servers.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']}, not {VERSION}")
        records = [ServerRecord(**entry) for entry in content["servers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}), so that the servers started here are unknown. "
            "Kill them if there are any, remove the file, then run: dml up"
        ) from error
    return {record.name: record for record in records}


def save_records(folder: Path, records: dict[str, ServerRecord]) -> None:
    """Writes the record atomically; removes it if there is no server."""
    path = state_folder(folder) / "servers.json"
    if not records:
        path.unlink(missing_ok=True)
        return
    make_state_folder(folder)
    content = {"version": VERSION, "servers": [asdict(record) for record in records.values()]}
    temporary = make_owner_only_file(path.with_suffix(".partial"))
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the record, so that two `dml up` at once start one set of servers."""
    path = make_owner_only_file(make_state_folder(folder) / "servers.lock")
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def note_run(folder: Path, what: str = "") -> None:
    """Leaves a note of this process in a folder that has servers; its exit removes the note.

    Args:
        folder: the project folder.
        what: a description of the run; by default the command line.
    """
    if not load_records(folder):
        return
    process = psutil.Process()
    what = redact(what or " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    run = ActiveRun(process.pid, process.create_time(), what)
    path = make_state_folder(folder) / _RUNS_FOLDER / f"{run.pid}.json"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(asdict(run)) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    atexit.register(path.unlink, missing_ok=True)


def list_active_runs(folder: Path) -> list[ActiveRun]:
    """Returns the runs that work now, the oldest first; removes the notes of killed ones."""
    active = []
    for path in (state_folder(folder) / _RUNS_FOLDER).glob("*.json"):
        try:
            run = ActiveRun(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        if find_process(run.pid, created=run.created):
            active.append(run)
        else:
            path.unlink(missing_ok=True)
    return sorted(active, key=lambda run: run.created)
