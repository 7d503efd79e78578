"""Ends all child processes of this process when it ends, however it ends.

This file has two parts. `guarded_folder` starts a guardian: this same file, run as a program. The
guardian reads a pipe from the guarded process, which the system closes with that process, even at
kill -9. It then ends the processes that were started and removes their folder. PDEATHSIG is not
used: it reaches direct children only, and Ray's and Prefect's servers start their own.
"""

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import IO

import psutil

MARK = "DML_GUARDED_BY"
"""Environment variable of every process started from now on: the path of the guarded folder."""
GRACE_SECONDS = 3.0
LONGEST_SECONDS = 30.0
SECONDS_BETWEEN_LOOKS = 0.02
TRACKER = "multiprocessing.resource_tracker"
"""Python's own tracker of shared memory: it cleans up and ends with the process that started it."""
_LONGEST_BASE = 24
"""Ray's sockets lie 75 characters deep in the folder, and their paths may have about 100."""


def guarded_folder() -> Path:
    """Returns this process's folder for temporary files; the first call starts the guardian.

    When this process ends, normally or by kill -9, the guardian ends the processes that it started
    since then and removes the folder. Otherwise Prefect's server would run for ever, and Ray's
    processes for a minute, in which they try to report to each other.
    """
    return _start_guardian()[0]


def remember_processes() -> None:
    """Makes the guardian note all processes that this one has started.

    Some write their title over their environment, and could not be identified later.
    """
    pipe = _start_guardian()[1]
    pipe.write(b"look\n")
    pipe.flush()


@cache
def _start_guardian() -> tuple[Path, IO[bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="dml-", dir=_choose_base()))
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    guardian = subprocess.Popen(
        [sys.executable, "-I", __file__, MARK, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in the terminal must reach the guarded process only.
        start_new_session=True,
    )
    assert guardian.stdin is not None
    os.environ[MARK] = str(folder)
    # Closes the guardian's input and waits until it has cleaned up.
    atexit.register(guardian.communicate)
    return folder, guardian.stdin


def _choose_base() -> str:
    chosen = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    is_usable = len(chosen) <= _LONGEST_BASE or not Path("/tmp").is_dir()  # noqa: S108
    return chosen if is_usable else "/tmp"  # noqa: S108


def guard(name: str, folder: str) -> None:
    """Waits until the pipe on standard input is closed, then ends processes and cleans up.

    Args:
        name: name of the environment variable that marks the processes.
        folder: its value.
    """
    known: dict[int, psutil.Process] = {}
    for _ in sys.stdin:
        known.update(find_guarded(name, folder))
    deadline = time.monotonic() + LONGEST_SECONDS
    # A process that was being started is found only by the second search.
    while time.monotonic() < deadline and (left := find_left(known, name, folder)):
        end(left)
    shutil.rmtree(folder, ignore_errors=True)


def find_left(known: dict[int, psutil.Process], name: str, folder: str) -> list[psutil.Process]:
    """Returns the guarded processes that are still alive."""
    known.update(find_guarded(name, folder))
    return [process for process in known.values() if is_alive(process)]


def find_guarded(name: str, folder: str) -> dict[int, psutil.Process]:
    """Returns the marked processes and their descendants, by pid."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == folder:
                family = [process, *process.children(recursive=True)]
                found.update({member.pid: member for member in family if not is_tracker(member)})
        except (OSError, psutil.Error):
            # It has ended, or belongs to another user.
            continue
    return found


def is_tracker(process: psutil.Process) -> bool:
    """Returns whether a process ignores signals and must not be waited for."""
    try:
        return any(TRACKER in part for part in process.cmdline())
    except psutil.Error:
        # A zombie child must not hide its parent.
        return False


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process still runs; another one may have its pid by now."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end(processes: list[psutil.Process]) -> None:
    """Terminates processes, and kills those that remain."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    stubborn = wait_for(processes)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_for(stubborn)


def wait_for(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Returns the processes that are still alive after a grace period.

    A zombie counts as ended: the guarded process collects it only after this one has ended.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := [process for process in processes if is_alive(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return left


if __name__ == "__main__":
    guard(sys.argv[1], sys.argv[2])
