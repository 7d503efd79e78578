"""Errors caused by the machine and not by a trial: a full disk, no memory, other code.

A retry, or the same command later, overcomes them, so they are no result of a trial.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from dml_core.trials.objects import BucketUnavailable

NO_ROOM_BYTES = 64 * 2**10
"""Below this a disk counts as full: not even a checkpoint of the smallest model fits."""
_NO_MEMORY = (
    "DefaultCPUAllocator",
    "can't start new thread",
    "Cannot allocate memory",
    "std::bad_alloc",
)
"""Messages of torch, Python, the system and C++ when memory is exhausted."""


class MachineFault(ValueError):
    """A fault of the machine stopped a run; the message has the cause and how to resume."""

    problem: ClassVar[str]
    remedy: ClassVar[str]

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Returns the fault with its message, which names the output folder."""
        return cls(
            f"{cls.problem.format(folder=folder)}, so the run was stopped; all finished trials and "
            f"epochs are kept. {cls.remedy}, and the same command resumes."
        )


class DiskFull(MachineFault):
    """The disk with the results has no room."""

    problem = "the disk that holds {folder} is full"
    remedy = "Make room there"


class QuotaUsedUp(MachineFault):
    """The disk with the results has room, but this user's quota is used up."""

    problem = "this user's quota on the disk that holds {folder} is used up"
    remedy = "Remove files or have it raised (`quota -s` shows it)"


class DiskReadOnly(MachineFault):
    """The disk with the results is mounted read-only."""

    problem = "the disk that holds {folder} is mounted read-only"
    remedy = "Mount it writable, or choose another sweep.results_root"


class FolderClosed(MachineFault):
    """This user may not write to the results."""

    problem = "this user may not write to {folder}"
    remedy = "Correct its owner or its mode"


class TooManyFiles(MachineFault):
    """The process or the machine has reached its limit of open files."""

    problem = "no more files could be opened at {folder}"
    remedy = "Raise the limit, as with `ulimit -n 65536`"


_BY_ERROR: dict[int, type[MachineFault]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: QuotaUsedUp,
    errno.EROFS: DiskReadOnly,
    errno.EMFILE: TooManyFiles,
    errno.ENFILE: TooManyFiles,
}
_BY_NAME = (DiskFull, QuotaUsedUp, DiskReadOnly, FolderClosed, TooManyFiles)


class OutOfMemory(RuntimeError):
    """A process ran out of memory; its parent may retry in another process."""


class BucketAway(MachineFault):
    """The bucket with the journals did not answer for long; the message names it."""


class OtherCode(MachineFault):
    """A worker's code or libraries differ from its sweep's; the message names them."""


@contextmanager
def clear_machine_faults(folder: Path) -> Iterator[None]:
    """Converts an error in the block to a MachineFault where the machine caused it.

    Args:
        folder: the output folder of the block.

    Raises:
        MachineFault: in place of the error that it caused.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, MachineFault):
            raise
        if (away := _find_away(error)) is not None:
            raise away from error
        if (fault := find_fault(error, folder)) is None:
            raise
        raise fault.at(folder) from error


def raise_machine_fault(error: Exception, folder: Path) -> None:
    """Raises the fault of the machine that caused an error, if there is one.

    Raises:
        MachineFault: where the folder cannot be written to, or the bucket does not answer.
        OutOfMemory: where this process ran out of memory.
        OtherCode: where another worker of the trial raised it.
    """
    if isinstance(error, MachineFault):
        raise error
    if (away := _find_away(error)) is not None:
        raise away from error
    if (fault := find_fault(error, folder)) is not None:
        raise fault.at(folder) from error
    if is_out_of_memory(error):
        raise OutOfMemory(f"no more memory for this process: {_first_line(error)}") from error


def find_fault(error: BaseException, folder: Path) -> type[MachineFault] | None:
    """Returns the fault of the machine that caused an error, also through wrapped errors."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _BY_ERROR:
            return _BY_ERROR[cause.errno]
        if isinstance(cause, PermissionError) and _is_within(cause.filename, folder):
            return FolderClosed
    return DiskFull if _has_no_room(folder) else None


def recall_fault(text: str, folder: Path) -> MachineFault | None:
    """Returns the fault that a text names: the traceback of another process.

    On a full disk Tune cannot write the traceback, so the disk itself is checked too.
    """
    for kind in (OtherCode, BucketAway):
        if kind.__name__ in text:
            return kind(text.rpartition(f"{kind.__name__}: ")[2].strip())
    kinds = (kind for kind in _BY_NAME if kind.__name__ in text)
    full = DiskFull.at(folder) if _has_no_room(folder) else None
    return next((kind.at(folder) for kind in kinds), full)


def _find_away(error: BaseException) -> BucketAway | None:
    for cause in _causes(error):
        if isinstance(cause, BucketUnavailable):
            return BucketAway(
                f"{cause} The run was stopped; all finished trials and epochs are kept. The same "
                "command resumes when it answers again."
            )
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the machine's memory was exhausted; a GPU's memory is the trial's matter."""
    return any(
        isinstance(e, MemoryError)
        or (isinstance(e, OSError) and e.errno == errno.ENOMEM)
        or (isinstance(e, RuntimeError | ImportError) and _speaks_of_memory(str(e)))
        for e in _causes(error)
    )


def check_room(folder: Path) -> None:
    """Raises DiskFull where the disk of a folder has no room."""
    if _has_no_room(folder):
        raise DiskFull.at(folder)


def _has_no_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < NO_ROOM_BYTES
    except OSError:
        return False


def _is_within(path: object, folder: Path) -> bool:
    return isinstance(path, str) and Path(path).absolute().is_relative_to(folder.absolute())


def _speaks_of_memory(text: str) -> bool:
    return any(words in text for words in _NO_MEMORY)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


# Errors of files that a retry does not change: a wrong name, a missing permission.
LASTING = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def is_momentary(task: Any, run: Any, state: Any) -> bool:
    """Returns whether a retry may help against a task's failure; a Prefect retry condition.

    A disk or a network that is briefly unavailable raises OSError. A user's mistake raises a
    ValueError with advice, which a retry would only delay.
    """
    return isinstance(state.data, OSError) and not isinstance(state.data, LASTING)
