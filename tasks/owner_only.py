"""Files and folders that their owner alone may read: databases, logs, passwords."""

import contextlib
import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_owner_only_folder(folder: Path) -> Path:
    """Makes a folder, or closes one that exists, so that only its owner gets in; returns it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return close_to_others(folder)


def make_owner_only_file(path: Path) -> Path:
    """Makes an empty file, or closes one that exists, so that only its owner reads it.

    Called before a program fills the file, so that at no moment others can read it. SQLite gives
    the files beside a database the mode of the database.
    """
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    return close_to_others(path)


def close_to_others(path: Path) -> Path:
    """Takes all rights of group and others from a path that exists; returns it.

    A path of another user stays as it is.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & ~_OTHERS)
    return path
