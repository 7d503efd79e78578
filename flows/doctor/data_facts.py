"""Compares a node's prepared data with the hashes that they were written with, for a while."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from dml_core.data.prepared_info import PreparedInfo, check_file_sizes, load_info
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.writing import DEVELOPMENT

_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class DataFacts:
    """How a dataset is on one machine."""

    folder: str
    version: str = ""
    """Hashes of its content and split, from `describe_data`; empty where there is none."""
    problem: str = ""
    """What is damaged; empty where nothing was found."""
    num_bytes: int = 0
    unchecked_bytes: int = 0
    """Of files that there was no time for; their sizes are right."""


def look_at_data(folder: Path, *, seconds: float, development_only: bool = False) -> DataFacts:
    """Returns how a prepared dataset is, after so many seconds at the latest.

    Args:
        folder: of the prepared dataset.
        seconds: for hashing; the sizes of all files are looked at in any case.
        development_only: leave out the test images, which fetched data lack.
    """
    if not (folder / "dataset.json").exists():
        return DataFacts(str(folder))
    try:
        info = load_info(folder)
        names = [name for name in info.files if not development_only or _is_development(name)]
        check_file_sizes(info, folder, names)
    except (DatasetError, OSError) as error:
        return DataFacts(str(folder), problem=str(error))
    return _hash_files(folder, info, names, deadline=time.monotonic() + seconds)


def _hash_files(
    folder: Path, info: PreparedInfo, names: list[str], *, deadline: float
) -> DataFacts:
    unchecked, problem = 0, ""
    for name in sorted(names, key=lambda name: int(info.files[name]["size"])):
        digest = _hash_until(folder / name, deadline)
        if digest is None:
            unchecked += int(info.files[name]["size"])
        elif digest != info.files[name]["sha256"]:
            problem = f"{folder / name} is damaged: its sha256 is not the one it was written with"
            break
    total = sum(int(info.files[name]["size"]) for name in names)
    version = f"{info.content_hash}/{info.split_hash}"
    return DataFacts(str(folder), version, problem, total, unchecked)


def _hash_until(path: Path, deadline: float) -> str | None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if time.monotonic() > deadline:
                return None
            digest.update(block)
    return digest.hexdigest()


def _is_development(name: str) -> bool:
    return name == SPLIT_FILE or name.startswith(f"{DEVELOPMENT}/")
