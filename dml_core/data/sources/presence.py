"""Tells which files of a long list are missing, by one look at each folder."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def missing_files(files: Iterable[Path]) -> list[Path]:
    """Returns the paths at which there is no file, in the given order.

    One scan a folder instead of one question a file, so that 120,000 files take about a second.
    A link counts as the file that it points to.
    """
    known: dict[str, set[str]] = {}
    missing = []
    for file in files:
        folder, name = os.path.split(file)
        if folder not in known:
            known[folder] = _names_of_files(folder)
        if name not in known[folder]:
            missing.append(file)
    return missing


def _names_of_files(folder: str) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        # A folder whose name is too long, or a circle of links, is nowhere either.
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return set()
        raise
