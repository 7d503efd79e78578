"""Where the journals of trials are kept: a small store with a local folder as its first form."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

LOCKS_FOLDER = ".locks"


class TrialStore(Protocol):
    """Files of trials by key and name. Only checkpoints are reached by path."""

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

    def checkpoint_folder(self, key: str) -> Path:
        """Returns the folder of a trial's checkpoints."""


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

    def _lock_file(self, key: str) -> Path:
        return self._folder / LOCKS_FOLDER / key


def open_store(location: str) -> TrialStore:
    """Opens the store that has this location."""
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
