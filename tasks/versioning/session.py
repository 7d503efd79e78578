"""Opens a project's DVC repository without output, waits for its lock, explains DVC's errors."""

import logging
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
from dvc.config import NoRemoteError
from dvc.exceptions import (
    CheckoutError,
    DownloadError,
    DvcException,
    FileMissingError,
    NotDvcRepoError,
)
from dvc.lock import LockError
from dvc.repo import Repo

ADD_REMOTE = "dvc remote add --default storage s3://BUCKET/FOLDER (or the path of a shared folder)"

# DVC raises one of these when a remote lacks bytes, depending on when it notices.
ABSENCE = (CheckoutError, DownloadError, FileMissingError)


class DvcError(ValueError):
    """DVC cannot do what was requested; the message has the reason and a command that helps."""


class DvcLocked(DvcError):
    """Another process holds the project for the moment."""

    def __init__(self, reason: str) -> None:
        """Takes a sentence that names the project and the lock's holder."""
        super().__init__(
            f"{reason} One process may change it at a time. Wait until that one has ended, then "
            "run the same command again."
        )
        self.reason = reason


def has_repo(folder: Path) -> bool:
    """Returns whether the folder is the root of a DVC project."""
    return (folder / ".dvc").is_dir()


@contextmanager
def open_repo(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Repo]:
    """Yields the DVC repository whose root is the folder; DVC's errors become DvcErrors.

    Args:
        folder: the root of the project.
        settings: override those of the project's `.dvc/config`.
    """
    # Checked here, because DVC itself would use a repository in a parent folder.
    if not has_repo(folder):
        raise DvcError(
            f"{folder} must be the root of a DVC project, with a folder .dvc in it. Found none. "
            "Change to the project's folder, or make one: dml init FOLDER (or, here: dvc init)"
        )
    with quiet(), plain_errors(folder):
        root = folder.resolve()
        has_git = any((place / ".git").exists() for place in (root, *root.parents))
        # DVC refuses a folder without git unless its settings allow it; those of a copy do not.
        without_git = {} if has_git else {"core": {"no_scm": True}}
        repo = Repo(str(root), config={**without_git, **(settings or {})} or None)
        try:
            yield repo
        finally:
            repo.close()


def redact(text: str) -> str:
    """Returns the text without credentials in addresses and without DVC's terminal colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text))


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps DVC's messages and progress bars off the terminal."""
    loggers = [logging.getLogger(name) for name in ("dvc", "dvc_data", "dvc_objects")]
    former = [logger.level for logger in loggers]
    # DVC draws its progress bars unless the log level is above ERROR.
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, former, strict=True):
            logger.setLevel(level)


@contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    """Converts DVC's exceptions to DvcErrors that say what to do."""
    try:
        yield
    except NotDvcRepoError as error:
        raise DvcError(f"{folder} is no DVC project: {error}. Run: dvc init") from error
    except LockError as error:
        raise DvcLocked(_describe_lock(folder, error)) from error
    except NoRemoteError as error:
        raise DvcError(
            f"the DVC project at {folder} has no remote to keep data in. Run: {ADD_REMOTE}"
        ) from error
    except DvcException as error:
        raise DvcError(redact(f"DVC refuses at {folder}: {_in_one_line(error)}")) from error


def _in_one_line(error: DvcException) -> str:
    said = " ".join(str(error).split())
    if "Could not find '" in said:
        said += ". Add the key to params.yaml, where dvc.yaml reads it"
    return said


def _describe_lock(folder: Path, error: LockError) -> str:
    holders = ", ".join(_lock_holders(folder / ".dvc" / "tmp" / "lock"))
    # DVC's message names the process of a running stage; otherwise we search for the holder.
    # Its advice to remove the lock file applies to the files of a dead machine only.
    said = " ".join(str(error).partition("If there are no processes")[0].split())
    who = f"by {holders}" if holders else f"by another process ({said})"
    return f"the DVC project at {folder} is locked {who}."


def _lock_holders(file: Path) -> Iterator[str]:
    """Yields the other processes that have the lock file open."""
    wanted, own = str(file.resolve()), psutil.Process().pid
    for process in psutil.process_iter():
        try:
            if process.pid != own and any(wanted == opened.path for opened in process.open_files()):
                command = " ".join(process.cmdline())
                yield f"`{textwrap.shorten(command, 100)}` (pid {process.pid})"
        except psutil.Error:
            continue


Result = TypeVar("Result")
LOCK_TIMEOUT_SECONDS = 3600.0
"""How long to wait for DVC's lock: longer than the commit of a large dataset takes."""
PAUSE_SECONDS = 0.5
SECONDS_BETWEEN_MESSAGES = 30.0


def wait_while_locked(
    work: Callable[[], Result],
    *,
    on_wait: Callable[[str], None],
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Calls work until the project is not locked, and returns its result.

    DVC gives up after three seconds, and the commit of a large dataset takes longer. Its option
    `Repo(_wait_for_lock=True)` is not used: it waits for ever, names no holder, and leaves the
    locks on files (rwlock) as they are. Each call reads anew what the former holder wrote.

    Args:
        work: needs the project; must be safe to repeat.
        on_wait: gets the lock's holder and the time waited, from time to time.
        timeout_seconds: how long to wait before giving up.
        clock: gives the time in seconds.

    Raises:
        DvcError: when the project stays locked; with its holder and the time waited.
    """
    started = clock()
    reported = -SECONDS_BETWEEN_MESSAGES
    while True:
        try:
            return work()
        except DvcLocked as locked:
            waited = clock() - started
            if waited >= timeout_seconds:
                raise DvcError(
                    f"{locked} We waited {waited:.0f} s, and {timeout_seconds:.0f} s are the "
                    "limit. What the run has done is kept."
                ) from locked
            if waited - reported >= SECONDS_BETWEEN_MESSAGES:
                reported = waited
                on_wait(f"waiting since {waited:.0f} s: {locked.reason}")
        time.sleep(PAUSE_SECONDS)


def track(folder: Path, path: Path) -> Path:
    """Adds a path to DVC's cache and returns its `.dvc` file.

    A second call after a change records the new version.

    Args:
        folder: the root of the project.
        path: a file or a folder inside the project, which git must not track.
    """
    with open_repo(folder) as repo:
        (stage,) = repo.add(str(path.resolve()))
        return Path(stage.path)
