"""The guardian of a process: waits for its end, then ends what it started and removes its folder.

Run as a program of its own with the name and the value of the mark, which is the folder. It reads
the guarded process's pipe, which the system closes with that process, even at kill -9.
"""

import contextlib
import shutil
import sys
import time

import psutil

GRACE_SECONDS = 3.0
LONGEST_SECONDS = 30.0
SECONDS_BETWEEN_LOOKS = 0.02
TRACKER = "multiprocessing.resource_tracker"
"""Python's own guardian of shared memory: cleans up and ends with the process that started it."""


def main(name: str, folder: str) -> None:
    """Watches until the pipe is closed, and cleans up then."""
    known: dict[int, psutil.Process] = {}
    for _ in sys.stdin:
        known.update(find_guarded(name, folder))
    deadline = time.monotonic() + LONGEST_SECONDS
    # One that was just being started shows only at the second look.
    while time.monotonic() < deadline and (left := find_left(known, name, folder)):
        end(left)
    shutil.rmtree(folder, ignore_errors=True)


def find_left(known: dict[int, psutil.Process], name: str, folder: str) -> list[psutil.Process]:
    """Returns the guarded processes that still live."""
    known.update(find_guarded(name, folder))
    return [process for process in known.values() if is_alive(process)]


def find_guarded(name: str, folder: str) -> dict[int, psutil.Process]:
    """Returns the processes with the mark and those that they started, by pid."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == folder:
                family = [process, *process.children(recursive=True)]
                found.update({member.pid: member for member in family if not is_tracker(member)})
        except (OSError, psutil.Error):
            # It has ended meanwhile, or is somebody else's.
            continue
    return found


def is_tracker(process: psutil.Process) -> bool:
    """Returns whether a process is one that heeds no signal and must not be waited for."""
    try:
        return any(TRACKER in part for part in process.cmdline())
    except psutil.Error:
        # An ended child that was not collected yet must not hide its parent.
        return False


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process still does something; its number may be another's by now."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end(processes: list[psutil.Process]) -> None:
    """Asks processes to end, and kills those that do not."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    stubborn = wait_for(processes)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_for(stubborn)


def wait_for(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Returns those that live on after a while.

    One that has ended may keep its number until the guarded process asks for its end, and that one
    waits for this.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := [process for process in processes if is_alive(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return left


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
