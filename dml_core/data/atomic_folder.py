"""Makes a folder whole or not at all, also when the process is killed on the way."""

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
    """Holds the only right to make the target folder; waits while another process has it.

    The kernel gives the lock back when its holder dies, so a killed process blocks nobody.
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
    """Yields an empty folder that takes the target's place once the block ends without error.

    An older target stays untouched until then. Call it inside `folder_lock`: what it finds left
    over beside the target then belongs to a dead process and is removed.
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
    """Removes what killed processes left beside the target, and puts back a target moved aside."""
    target = target.resolve()
    former = _former(target)
    if former.exists() and not target.exists():
        # The process died between the two renames of _swap: the older folder is still whole.
        former.rename(target)
    beginning = f".{target.name}.partial-"
    for entry in list(target.parent.iterdir()) if target.parent.exists() else []:
        if entry == former or entry.name.startswith(beginning):
            shutil.rmtree(entry)


def _former(target: Path) -> Path:
    return target.parent / f".{target.name}.former"


def _swap(partial: Path, target: Path) -> None:
    # A folder with content cannot be renamed over, so the older one steps aside first.
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
            LOGGER.warning("waiting for another process that is making %s", target)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The former holder unlinks its lock file, so a waiter may hold a file without a name.
        if _is_still_named(descriptor, lock_file):
            return descriptor
        os.close(descriptor)


def _is_still_named(descriptor: int, lock_file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), lock_file.stat())
    except FileNotFoundError:
        return False
