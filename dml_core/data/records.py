"""The listing of a dataset before any pixel is read, and the report of its problems."""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

# train: development classes, including validation classes.
# test, query, gallery: held out; query and gallery if the benchmark has both.
# undecided: no official split; data.test_fraction splits by class.
Role = Literal["train", "test", "query", "gallery", "undecided"]


class DatasetError(ValueError):
    """A dataset is missing, partial or unusable; the message names the file and the remedy."""


@dataclass(frozen=True)
class ImageRecord:
    """One image: its source, class, role and labels."""

    path: str
    """Unique name within the dataset, with forward slashes; records are sorted by it."""
    class_name: str
    role: Role
    file: Path | None = None
    """The image file; None if `pixels` holds the image."""
    pixels: np.ndarray | None = None
    """(H, W) or (H, W, 3) uint8, for sources that draw images or read them in bulk."""
    continuous: dict[str, float] = field(default_factory=dict)
    """Continuous labels by column; all records of a dataset have the same columns."""


@dataclass(frozen=True)
class SourceListing:
    """All images of a dataset."""

    records: list[ImageRecord]
    root: Path | None
    """Folder that must contain all files after links are resolved; None for drawn images."""


MAX_EXAMPLES = 10
"""Problems of one kind that are listed; the rest are counted."""


def shorten_list(lines: Sequence[str], *, limit: int = MAX_EXAMPLES) -> list[str]:
    """Returns the first lines, and one more line with the number of omitted ones."""
    shown = list(lines[:limit])
    if len(lines) > limit:
        shown.append(f"... and {len(lines) - limit:,} more like these ({len(lines):,} in all).")
    return shown


def shorten_text(value: object, *, limit: int = 80) -> str:
    """Returns the repr of a value, truncated."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def raise_for(where: str, kinds: Sequence[Sequence[str]], *, advice: str = "") -> None:
    """Raises a DatasetError that lists all problems by kind; does nothing without problems.

    Args:
        where: the table's path, or the dataset and its folder.
        kinds: for each kind of problem, one line per case; may be empty.
        advice: the remedy, as sentences.
    """
    total = sum(len(lines) for lines in kinds)
    if not total:
        return
    listed = [line for lines in kinds for line in shorten_list(lines)]
    bullets = "".join(f"\n  - {line}" for line in listed)
    raise DatasetError(
        f"{where} has {total:,} problem(s):{bullets}" + (f"\n{advice}" if advice else "")
    )


def missing_files(files: Iterable[Path]) -> list[Path]:
    """Returns the paths without a file, in the given order.

    It scans each folder once instead of checking each file, so 120,000 files take about a second.
    A link counts as its target.
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
        # A folder with too long a name or a cycle of links does not exist either.
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return set()
        raise
