"""Opens a project's DVC repository, quietly, and says in plain words what DVC refuses."""

import logging
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

# What DVC raises when a remote lacks bytes, depending on when it finds out.
ABSENCE = (CheckoutError, DownloadError, FileMissingError)


class DvcError(ValueError):
    """DVC cannot do what was asked; says why and which command helps."""


class DvcLocked(DvcError):
    """Another process holds the project for the moment."""

    def __init__(self, reason: str) -> None:
        """Takes who holds which project, as a sentence."""
        super().__init__(
            f"{reason} One process may change it at a time. Wait until that one has ended, then "
            "run the same command again."
        )
        self.reason = reason


def has_repo(folder: Path) -> bool:
    """Returns whether the folder is the root of a DVC project."""
    return (folder / ".dvc").is_dir()


@contextmanager
def open_repo(folder: Path) -> Iterator[Repo]:
    """Yields the DVC repository whose root is the folder; its messages become DvcErrors."""
    # Looked at here, because DVC itself would take a repository in a folder further up.
    if not has_repo(folder):
        raise DvcError(
            f"{folder} must be the root of a DVC project, with a folder .dvc in it. Found none. "
            "Change to the project's folder, or make one with: dvc init"
        )
    with quiet(), _plain_errors(folder):
        repo = Repo(str(folder.resolve()))
        try:
            yield repo
        finally:
            repo.close()


def redact(text: str) -> str:
    """Returns the text without the user and password that an address in it may hold.

    The colours that DVC puts around links go too.
    """
    return re.sub(r"\x1b\[[0-9;]*m", "", re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text))


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps DVC's messages and progress bars off the terminal."""
    loggers = [logging.getLogger(name) for name in ("dvc", "dvc_data", "dvc_objects")]
    former = [logger.level for logger in loggers]
    # DVC draws its progress bars unless its level lies above ERROR.
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, former, strict=True):
            logger.setLevel(level)


@contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
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
        raise DvcError(redact(f"DVC refuses at {folder}: {error}")) from error


def _describe_lock(folder: Path, error: LockError) -> str:
    holders = ", ".join(_lock_holders(folder / ".dvc" / "tmp" / "lock"))
    # Where a stage is running, DVC's own message names its process; otherwise we look for it.
    who = f"by {holders}" if holders else f"by another process ({error})"
    return f"the DVC project at {folder} is locked {who}."


def _lock_holders(file: Path) -> Iterator[str]:
    """Names the other processes that have the lock file open."""
    wanted, own = str(file.resolve()), psutil.Process().pid
    for process in psutil.process_iter():
        try:
            if process.pid != own and any(wanted == opened.path for opened in process.open_files()):
                command = " ".join(process.cmdline())
                yield f"`{textwrap.shorten(command, 100)}` (pid {process.pid})"
        except psutil.Error:
            continue
