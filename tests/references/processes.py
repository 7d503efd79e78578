"""Processes of this machine: alive, named, killed with all that they started."""

import contextlib

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process runs and is no zombie; a reused pid does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def name_of(process: psutil.Process) -> str:
    """Returns the name of a process; empty if it has ended."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def kill_tree(pid: int) -> None:
    """Kills a process with all its descendants, and waits for their end."""
    try:
        root = psutil.Process(pid)
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
