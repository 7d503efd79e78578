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
                found.update({member.pid: member for member in family})
        except (OSError, psutil.Error):
            # It has ended meanwhile, or is somebody else's.
            continue
    return found


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
    _, stubborn = psutil.wait_procs(processes, timeout=GRACE_SECONDS)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=GRACE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
