"""Background processes: each starts in its own session and ends with all its children."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from tasks.secrets import make_owner_only_file

# Start times shift when the machine's clock is set; a pid is reused much later than this.
SAME_PROCESS_SECONDS = 2.0


def start_detached(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
) -> psutil.Process:
    """Starts a program that outlives this one and writes its output to `log`.

    Keeps the previous log beside it, with the suffix `.old`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        os.replace(log, log.with_suffix(".log.old"))
    make_owner_only_file(log)
    with open(log, "wb") as output:
        started = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Only the owner may read databases and logs.
            umask=0o077,
        )
    return psutil.Process(started.pid)


def find_process(pid: int, *, created: float) -> psutil.Process | None:
    """Returns the living process with a pid and a start time; None if the pid was reused.

    Args:
        pid: its number.
        created: its start time, in seconds since 1970.
    """
    try:
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - created) < SAME_PROCESS_SECONDS
        return process if is_same and is_alive(process) else None
    except psutil.Error:
        return None


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def find_family(pid: int, *, created: float) -> list[psutil.Process]:
    """Returns the living processes of a background program: itself, its children, its session.

    A killed program may leave children behind. They are in the session that it led, and the
    system gives no new process the pid of an existing session.
    """
    if created < psutil.boot_time() - SAME_PROCESS_SECONDS:
        return []
    root = find_process(pid, created=created)
    if root is None and psutil.pid_exists(pid) and not _is_zombie(pid):
        return []
    family = {pid: root} if root else {}
    family.update({child.pid: child for child in _children(root)})
    family.update({member.pid: member for member in _session(pid)})
    return [process for process in family.values() if process and is_alive(process)]


def find_marked(name: str, value: str) -> list[psutil.Process]:
    """Returns the living processes with a certain value in their environment.

    Skips processes of other users, whose environment cannot be read.
    """
    marked = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and is_alive(process):
                marked.append(process)
        except (OSError, psutil.Error):
            continue
    return marked


def end_processes(find: Callable[[], list[psutil.Process]], *, grace_seconds: float = 15.0) -> None:
    """Ends processes with SIGTERM, then with SIGKILL.

    Args:
        find: returns the living ones; called twice, since they may start others meanwhile.
        grace_seconds: time between the two signals.
    """
    found = find()
    _send(signal.SIGTERM, found)
    wait_until_gone(found, seconds=grace_seconds)
    stubborn = [*(process for process in found if is_alive(process)), *find()]
    _send(signal.SIGKILL, stubborn)
    wait_until_gone(stubborn, seconds=5.0)


def wait_until_gone(processes: Iterable[psutil.Process], *, seconds: float) -> bool:
    """Waits until all processes have ended; returns False if the time is over before."""
    deadline = time.monotonic() + seconds
    while any(is_alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            # psutil checks the start time first, so that a reused pid gets no signal.
            process.send_signal(number)
        except psutil.Error:
            continue


def _children(root: psutil.Process | None) -> list[psutil.Process]:
    try:
        return root.children(recursive=True) if root else []
    except psutil.Error:
        return []


def _session(pid: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid:
                members.append(process)
        except (OSError, psutil.Error):
            continue
    return members


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
