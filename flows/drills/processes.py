"""All processes that a command starts, also those that its end leaves behind."""

import contextlib
import time
from pathlib import Path

import psutil

MARK = "DML_DRILL"
"""Name in the environment of every process of a drill; its value is the drill's folder."""


class Family:
    """The processes of a drill, by descent, by the mark in their environment, and by their folder.

    Descent alone misses what was started and orphaned between two looks; the mark alone misses
    those that write a title over their environment, as Ray's workers do, and both miss the
    workers of a cluster that was there before. These work in the project's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._known: dict[int, psutil.Process] = {}

    def look(self, pid: int) -> list[psutil.Process]:
        """Takes note of everything below a process, and returns all that is known."""
        try:
            children = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        self._known.update({child.pid: child for child in children})
        return list(self._known.values())

    def living(self) -> list[psutil.Process]:
        """Returns those that still do something."""
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if self._folder in (process.environ().get(MARK), process.cwd()):
                    self._known.setdefault(process.pid, process)
        return [process for process in self._known.values() if is_alive(process)]

    def left(self, *, seconds: float) -> list[str]:
        """Returns what still lives when the time is over, by number and name."""
        deadline = time.monotonic() + seconds
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [f"{process.pid} {name_of(process)}" for process in left]

    def kill(self) -> None:
        """Ends all of them."""
        for process in self.living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def find_trial_workers(folder: Path) -> list[psutil.Process]:
    """Returns the processes that train in a project's folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            trains = process.name().startswith("ray::Implicit") and is_alive(process)
            if trains and process.cwd() == str(folder):
                found.append(process)
    return found


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process still does something; its number may be another's by now."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def name_of(process: psutil.Process) -> str:
    """Returns a process's name, nothing for one that has ended."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def kill_tree(pid: int) -> None:
    """Kills a process with all that it started, and waits for their end."""
    try:
        root = psutil.Process(pid)
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
