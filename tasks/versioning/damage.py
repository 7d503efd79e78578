"""Finds files of a prepared dataset whose bytes are not those that were written."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data.prepared_info import FILE_NAME as INFO_FILE
from dml_core.data.prepared_info import FORMAT_VERSION, PreparedInfo, hash_file, load_info
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.writing import DEVELOPMENT

Identity = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of each file."""

_verified: set[tuple[str, int, int, int, str]] = set()
"""What this process has hashed and found whole, and is not hashed again."""


@dataclass(frozen=True)
class Damage:
    """One file that is not what it was written as."""

    file: Path
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file} is damaged: its sha256 must be {self.expected}. Got {self.found}."


def find_damage(folder: Path, parts: Sequence[str] = (DEVELOPMENT,)) -> list[Damage]:
    """Returns the damaged files of a prepared folder; none where nothing was prepared.

    A file is hashed once by each process, and again when its inode, size or time has changed.

    Args:
        folder: the prepared folder.
        parts: which images; the split is looked at in any case.
    """
    if not (folder / INFO_FILE).exists() or _is_of_another_version(folder):
        return []
    try:
        info = load_info(folder)
        written = {name: _read_entry(info, name) for name in list_names(info, parts)}
    except (DatasetError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        return [Damage(folder / INFO_FILE, "that of a readable file", f"one that is not: {reason}")]
    checked = (_check(folder / name, *entry) for name, entry in written.items())
    return [damage for damage in checked if damage is not None]


def list_names(info: PreparedInfo, parts: Iterable[str]) -> list[str]:
    """Returns the files that hold the split and some parts, relative to the prepared folder."""
    folders = tuple(f"{part}/" for part in parts)
    return [name for name in info.files if name == SPLIT_FILE or name.startswith(folders)]


def identify_files(config: DataBase) -> Identity:
    """Returns what tells whether the development files are still those that were opened."""
    folder = config.prepared_path
    files = sorted((folder / DEVELOPMENT).glob("*")) if folder.is_dir() else []
    return tuple(_identify(file) for file in files)


def _read_entry(info: PreparedInfo, name: str) -> tuple[str, int]:
    return str(info.files[name]["sha256"]), int(info.files[name]["size"])


def _check(file: Path, expected: str, size: int) -> Damage | None:
    if not file.is_file():
        return Damage(file, expected, "no file")
    identity = _identify(file)
    if (*identity, expected) in _verified:
        return None
    found = hash_file(file)
    if found != expected:
        return Damage(file, expected, f"{found} ({identity[2]} of {size} bytes)")
    _verified.add((*identity, expected))
    return None


def _identify(file: Path) -> tuple[str, int, int, int]:
    state = os.stat(file)
    return str(file.resolve()), state.st_ino, state.st_size, state.st_mtime_ns


def _is_of_another_version(folder: Path) -> bool:
    """Tells data that another version of the program wrote from damaged ones."""
    try:
        version = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))["format_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(version, int) and version != FORMAT_VERSION
