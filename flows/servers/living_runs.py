"""Which runs of a folder work at this moment with the servers that `dml up` started.

Each run leaves a note in .dml/runs/ with its pid and start time. A note without such a process is
of a run that was killed.
"""

import atexit
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from flows.servers.processes import find_process
from flows.servers.record import load_records, make_state_folder, state_folder
from tasks.redaction import redact

_FOLDER = "runs"


@dataclass(frozen=True)
class LivingRun:
    """One run that works now."""

    pid: int
    created: float
    """When the process started, in seconds since 1970; with the pid it names the process."""
    what: str
    """What was asked for, such as the command line."""

    def describe(self) -> str:
        """Returns what runs, its process and its start, for a message."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.created))
        return f"{self.what} (process {self.pid}, since {since})"


@cache
def note_run(folder: Path, what: str = "") -> None:
    """Leaves a note of this process in a folder that has servers; the process's end removes it.

    Args:
        folder: the project folder.
        what: what runs; by default the command line.
    """
    if not load_records(folder):
        return
    process = psutil.Process()
    what = redact(what or " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    run = LivingRun(process.pid, process.create_time(), what)
    path = make_state_folder(folder) / _FOLDER / f"{run.pid}.json"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(asdict(run)) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    atexit.register(path.unlink, missing_ok=True)


def list_living_runs(folder: Path) -> list[LivingRun]:
    """Returns the runs that work now, the oldest first; notes of killed ones are removed."""
    living = []
    for path in (state_folder(folder) / _FOLDER).glob("*.json"):
        try:
            run = LivingRun(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        if find_process(run.pid, created=run.created):
            living.append(run)
        else:
            path.unlink(missing_ok=True)
    return sorted(living, key=lambda run: run.created)
