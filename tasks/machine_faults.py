"""Errors that are the machine's and not a trial's: a full disk, no more memory.

Another try, or the same command later, gets past them, so they are no result of a trial.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_ROOM_BYTES = 64 * 2**10
"""With less than this a disk counts as full: not even a checkpoint of the smallest model fits."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_MEMORY = (
    "DefaultCPUAllocator",
    "can't start new thread",
    "Cannot allocate memory",
    "std::bad_alloc",
)
"""How torch, Python, the system and C++ say that there is no more memory."""


class DiskFull(ValueError):
    """The disk with the results has no room; the message says which, and how to go on."""


class OutOfMemory(RuntimeError):
    """A process got no more memory; whoever started it may try again in another one."""


@contextmanager
def told_when_full(folder: Path) -> Iterator[None]:
    """Turns an error in the block into a clear one where the disk of a folder is full.

    Raises:
        DiskFull: in the place of whatever was raised because of that.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, DiskFull) or not is_disk_full(error, folder):
            raise
        raise DiskFull(say_full(folder)) from error


def raise_machine_fault(error: Exception, folder: Path) -> None:
    """Raises what is wrong with the machine where that has caused an error.

    Raises:
        DiskFull: where the disk of the folder has no room.
        OutOfMemory: where there is no more memory for this process.
    """
    if is_disk_full(error, folder):
        raise DiskFull(say_full(folder)) from error
    if is_out_of_memory(error):
        raise OutOfMemory(f"no more memory for this process: {_first_line(error)}") from error


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Returns whether a full disk has led to an error, which may have been wrapped by others."""
    if any(isinstance(e, OSError) and e.errno in _FULL for e in _causes(error)):
        return True
    return _has_no_room(folder)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the machine's memory was at its end; that of a GPU is the trial's matter."""
    return any(
        isinstance(e, MemoryError)
        or (isinstance(e, OSError) and e.errno == errno.ENOMEM)
        or (isinstance(e, RuntimeError | ImportError) and _speaks_of_memory(str(e)))
        for e in _causes(error)
    )


def check_room(folder: Path) -> None:
    """Raises DiskFull where the disk of a folder has no room."""
    if _has_no_room(folder):
        raise DiskFull(say_full(folder))


def say_full(folder: Path) -> str:
    """Returns what to tell of a full disk."""
    return (
        f"the disk that holds {folder} is full, so the sweep was stopped; all finished trials and "
        "epochs are kept. Make room there, and the same command goes on where it stopped."
    )


def _has_no_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < NO_ROOM_BYTES
    except OSError:
        return False


def _speaks_of_memory(text: str) -> bool:
    return any(words in text for words in _NO_MEMORY)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
