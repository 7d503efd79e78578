"""Creates a folder completely or not at all, even if the process is killed."""

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOGGER = logging.getLogger(__name__)


@contextmanager
def folder_lock(target: Path) -> Iterator[None]:
    """Holds an exclusive lock on creating the target folder; waits for other processes.

    The kernel releases the lock if its holder dies, so a killed process blocks no other.
    """
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    lock_file = target.parent / f".{target.name}.lock"
    descriptor = _acquire(lock_file, target)
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that replaces the target when the block ends without error.

    An older target stays untouched until then. Call it inside `folder_lock`: partial folders
    beside the target then belong to dead processes and are removed.
    """
    target = target.resolve()
    remove_leftovers(target)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    partial.mkdir(parents=True)
    try:
        yield partial
        _swap(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_leftovers(target: Path) -> None:
    """Removes partial folders of killed processes, and restores a target that was moved aside."""
    target = target.resolve()
    former = _former(target)
    if former.exists() and not target.exists():
        # The process died between the two renames of _swap: the older folder is still complete.
        former.rename(target)
    beginning = f".{target.name}.partial-"
    for entry in list(target.parent.iterdir()) if target.parent.exists() else []:
        if entry == former or entry.name.startswith(beginning):
            shutil.rmtree(entry)


def _former(target: Path) -> Path:
    return target.parent / f".{target.name}.former"


def _swap(partial: Path, target: Path) -> None:
    # A rename cannot replace a folder with content, so the older one is moved aside first.
    if not target.exists():
        partial.rename(target)
        return
    former = _former(target)
    target.rename(former)
    partial.rename(target)
    shutil.rmtree(former)


def _acquire(lock_file: Path, target: Path) -> int:
    while True:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            LOGGER.warning("waiting for another process that is creating %s", target)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The previous holder unlinks its lock file, so a waiter may hold an unlinked file.
        if _is_still_named(descriptor, lock_file):
            return descriptor
        os.close(descriptor)


def _is_still_named(descriptor: int, lock_file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), lock_file.stat())
    except FileNotFoundError:
        return False
