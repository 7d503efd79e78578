"""Where the journals of trials and the ledgers of studies are kept: a small store.

Its two forms are a local folder, here, and a bucket (`dml_core.trials.bucket`).
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

LOCKS_FOLDER = ".locks"
LEDGER_FILE = "trials.jsonl"


class StudyLog(Protocol):
    """The lines of a study's ledger; they only grow."""

    def read(self) -> list[str]:
        """Returns all lines."""

    def append(self, line: str) -> None:
        """Adds a line."""

    def read_others(self) -> list[str]:
        """Returns the text of every other study's lines."""


class TrialStore(Protocol):
    """Files of trials by key and name, and the ledgers of studies."""

    @property
    def location(self) -> str:
        """The text from which `open_store` opens this store in another process."""

    def list_keys(self) -> list[str]:
        """Returns the keys of all trials, sorted."""

    def read(self, key: str, name: str) -> str | None:
        """Returns the content of a file; None if there is none."""

    def append(self, key: str, name: str, line: str) -> None:
        """Adds a line to a file of a trial that exists."""

    def write(self, key: str, name: str, text: str) -> None:
        """Replaces a file atomically."""

    def remove(self, key: str, name: str = "") -> None:
        """Removes a file or, without a name, the trial."""

    def changed_at(self, key: str, name: str) -> float | None:
        """Returns when a file was last written, in seconds since 1970; None if there is none."""

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Waits for the only right to train a trial and holds it within the block."""

    def is_locked(self, key: str) -> bool:
        """Returns whether a process holds the trial's lock."""

    def checkpoint_folder(self, key: str) -> Path | None:
        """Returns the folder of a trial's checkpoints; None where they are not files."""

    def remove_checkpoints(self, key: str) -> None:
        """Removes all checkpoints of a trial."""

    def hold(self) -> AbstractContextManager[None]:
        """Holds the right of a driver to this store within the block.

        A bucket has one driver at a time. A folder has several: the locks of its trials keep them
        apart.
        """

    def check_held(self) -> None:
        """Raises a ValueError when another driver has taken over."""

    def hand_out(self, key: str) -> None:
        """Notes that a worker may change a trial from now on."""

    def take_back(self, key: str) -> None:
        """Notes that a trial has ended: its files do not change any more."""

    def open_log(self, folder: Path) -> StudyLog:
        """Returns the ledger's lines of the study with this working folder."""


class LocalLog:
    """A file that grows; a line that a killed writer has torn stays a line by itself."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[str]:
        """Returns all lines."""
        if not self._path.exists():
            return []
        return self._path.read_text(encoding="utf-8").splitlines()

    def append(self, line: str) -> None:
        """Adds a line."""
        append_line(self._path, line)

    def read_others(self) -> list[str]:
        """Returns the text of every other study's lines."""
        paths = self._path.parent.parent.glob(f"*/{self._path.name}")
        return [path.read_text(encoding="utf-8") for path in paths if path != self._path]


class LocalStore:
    """A folder with a folder for each trial; several nodes may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._folder)

    def list_keys(self) -> list[str]:
        """Returns the keys of all trials, sorted."""
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if path.name != LOCKS_FOLDER)

    def read(self, key: str, name: str) -> str | None:
        """Returns the content of a file; None if there is none."""
        try:
            return (self._folder / key / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def append(self, key: str, name: str, line: str) -> None:
        """Adds a line to a file of a trial that exists."""
        append_line(self._folder / key / name, line)

    def write(self, key: str, name: str, text: str) -> None:
        """Replaces a file atomically."""
        folder = self._folder / key
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}.{os.getpid()}.partial"
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, folder / name)
        except OSError:
            # Its name is unique to this process, so no later one would remove it.
            temporary.unlink(missing_ok=True)
            raise

    def remove(self, key: str, name: str = "") -> None:
        """Removes a file or, without a name, the trial."""
        if name:
            (self._folder / key / name).unlink(missing_ok=True)
        else:
            shutil.rmtree(self._folder / key, ignore_errors=True)
            self._lock_file(key).unlink(missing_ok=True)

    def changed_at(self, key: str, name: str) -> float | None:
        """Returns when a file was last written, in seconds since 1970; None if there is none."""
        try:
            return (self._folder / key / name).stat().st_mtime
        except OSError:
            return None

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Waits for the only right to train a trial and holds it within the block.

        The kernel releases the lock with the process.
        """
        path = self._lock_file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Only the holder writes, except for spec.json, so these are of a killed process.
            for left in (self._folder / key).glob(".*.partial"):
                if not left.name.startswith(".spec."):
                    left.unlink(missing_ok=True)
            yield

    def is_locked(self, key: str) -> bool:
        """Returns whether a process holds the trial's lock."""
        return is_file_locked(self._lock_file(key))

    def checkpoint_folder(self, key: str) -> Path:
        """Returns the folder of a trial's checkpoints."""
        return self._folder / key / "checkpoints"

    def remove_checkpoints(self, key: str) -> None:
        """Removes all checkpoints of a trial."""
        shutil.rmtree(self.checkpoint_folder(key), ignore_errors=True)

    def hold(self) -> AbstractContextManager[None]:
        """Does nothing: the locks of the trials keep drivers apart."""
        return nullcontext()

    def check_held(self) -> None:
        """Does nothing."""

    def hand_out(self, key: str) -> None:
        """Does nothing: every read is of the file as it is."""

    def take_back(self, key: str) -> None:
        """Does nothing: every read is of the file as it is."""

    def open_log(self, folder: Path) -> StudyLog:
        """Returns the ledger's lines, which are in the study's working folder itself."""
        return LocalLog(folder / LEDGER_FILE)

    def _lock_file(self, key: str) -> Path:
        return self._folder / LOCKS_FOLDER / key


def open_store(location: str) -> TrialStore:
    """Opens the store that has this location: a folder, or an address such as s3://bucket/a."""
    if "://" in location:
        from dml_core.trials.bucket import BucketStore

        return BucketStore(location)
    return LocalStore(Path(location))


def is_file_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def append_line(path: Path, line: str) -> None:
    """Adds a line; a torn line that a killed writer left stays a line by itself.

    Raises:
        OSError: when the disk takes only a part of the line.
    """
    with open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if is_torn else b"") + line.encode() + b"\n")
