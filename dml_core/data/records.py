"""What a dataset source reports before any pixel is read: records, or every problem at once."""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

# train: development classes, from which validation classes are carved out.
# test, query, gallery: quarantined; query and gallery where the benchmark has both.
# undecided: no official split, data.test_fraction decides by class.
Role = Literal["train", "test", "query", "gallery", "undecided"]


class DatasetError(ValueError):
    """A dataset is missing, partial, wrong, or cannot be used; says which file and what to do."""


@dataclass(frozen=True)
class ImageRecord:
    """One image: where it is, what it shows, and what it may be used for."""

    path: str
    """Unique name within the dataset, with forward slashes; records are sorted by it."""
    class_name: str
    role: Role
    file: Path | None = None
    """The image file; None where `pixels` holds the image."""
    pixels: np.ndarray | None = None
    """(H, W) or (H, W, 3) uint8, for sources that draw their images or read them in bulk."""
    continuous: dict[str, float] = field(default_factory=dict)
    """Continuous labels by column name; every record of a dataset has the same columns."""


@dataclass(frozen=True)
class SourceListing:
    """Every image of a dataset, and the folder that none of its files may leave."""

    records: list[ImageRecord]
    root: Path | None
    """Folder that files must stay within, also through links; None for drawn images."""


MAX_EXAMPLES = 10
"""Problems of one kind that are spelled out; the rest are counted."""


def shorten_list(lines: Sequence[str], *, limit: int = MAX_EXAMPLES) -> list[str]:
    """Returns the first lines, and in one more line how many of their kind were left out."""
    shown = list(lines[:limit])
    if len(lines) > limit:
        shown.append(f"... and {len(lines) - limit:,} more like these ({len(lines):,} in all).")
    return shown


def shorten_text(value: object, *, limit: int = 80) -> str:
    """Returns the value as Python would write it, cut when it is long."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def raise_for(where: str, kinds: Sequence[Sequence[str]], *, advice: str = "") -> None:
    """Raises a DatasetError that lists the problems kind by kind; does nothing without any.

    Args:
        where: what has the problems: the table's path, or the dataset and its folder.
        kinds: for each kind of problem, one line a case; empty kinds are passed over.
        advice: what to do about it, as sentences.
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
