"""The record of what was started in the background, in .dml/servers.json."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.owner_only import make_owner_only_file, make_owner_only_folder

STATE_FOLDER = Path(".dml")
VERSION = 1


@dataclass(frozen=True)
class ServerRecord:
    """One program in the background."""

    name: str
    """prefect, mlflow or worker."""
    title: str
    """What it is called in messages."""
    pid: int
    created: float
    """When the process started, in seconds since 1970; with the pid it names the process."""
    address: str
    """Where a browser finds it; for the worker, that of the Prefect server it works for."""
    health_url: str
    """Answers 200 when the server works; for the worker, the list of workers it must be in."""
    log: str
    """File with what it prints."""
    worker_name: str = ""
    """Under which name the worker shows in the pool; empty for servers."""
    password_file: str = ""
    """File with the password that the server asks for; empty where it asks for none."""


def state_folder(folder: Path) -> Path:
    """Returns the folder that holds all background state of a project folder."""
    return folder.resolve() / STATE_FOLDER


def make_state_folder(folder: Path) -> Path:
    """Makes that folder where it is missing, and closes it to other users; returns it."""
    return make_owner_only_folder(state_folder(folder))


def load_records(folder: Path) -> dict[str, ServerRecord]:
    """Returns what was started in a project folder, by name; empty when nothing was.

    Raises:
        ValueError: when the record is damaged.
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
            f"{path} cannot be read ({error}), so that the servers started here are not known. "
            "End them by hand if there are any, remove the file, then run: dml up"
        ) from error
    return {record.name: record for record in records}


def save_records(folder: Path, records: dict[str, ServerRecord]) -> None:
    """Writes the record whole or not at all; without any server it is removed."""
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
    """Holds the record alone, so that two `dml up` at once start one set of servers."""
    path = make_owner_only_file(make_state_folder(folder) / "servers.lock")
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
