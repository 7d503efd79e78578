"""Files with what a frozen trunk makes of images: written once, each with its own hash."""

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dml_core.config.data import DataBase
from dml_core.data.prepared_info import hash_file

_LOGGER = logging.getLogger(__name__)

Rows = tuple[int, np.ndarray]
"""The first image's place and the activations of it and those after it."""

_verified: set[tuple[str, int, int, int, str]] = set()
"""What this process has hashed and found whole, and is not hashed again."""


def store_root(data: DataBase) -> Path:
    """Returns the folder of all stored activations, beside the prepared data."""
    return data.prepared_path.parent / ".activations"


def list_stored(data: DataBase) -> list[Path]:
    """Returns the folders of a dataset's activations."""
    return sorted(path for path in store_root(data).glob(f"{data.folder_name}-*") if path.is_dir())


@dataclass(frozen=True)
class StoredSet:
    """A folder with the activations of a set of images, one file for each view of them."""

    folder: Path

    def open_view(self, view: int) -> np.ndarray | None:
        """Returns a view, memory-mapped; None where there is none or where it is damaged."""
        path = self._array_path(view)
        if not path.exists() or not self._is_whole(view):
            return None
        activations: np.ndarray = np.load(path, mmap_mode="r")
        return activations

    def has_view(self, view: int) -> bool:
        """Tells whether a view is there and whole."""
        return self.open_view(view) is not None

    def write_view(
        self, view: int, parts: Iterable[Rows], *, num_images: int, facts: dict[str, Any]
    ) -> None:
        """Writes a view from parts in any order; a file appears whole or not at all.

        Args:
            view: its number.
            parts: together all images.
            num_images: of the set.
            facts: what the activations are of, for whoever reads the file beside them.
        """
        path = self._array_path(view)
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        written: np.memmap | None = None
        for start, rows in parts:
            if written is None:
                shape = (num_images, *rows.shape[1:])
                written = np.lib.format.open_memmap(
                    partial, mode="w+", dtype=rows.dtype, shape=shape
                )
            written[start : start + len(rows)] = rows
        assert written is not None
        written.flush()
        self._write_record(view, {**facts, "sha256": hash_file(partial)})
        os.replace(partial, path)

    def _array_path(self, view: int) -> Path:
        return self.folder / f"view_{view}.npy"

    def _record_path(self, view: int) -> Path:
        return self.folder / f"view_{view}.json"

    def _write_record(self, view: int, record: dict[str, Any]) -> None:
        path = self._record_path(view)
        partial = path.with_suffix(".json.partial")
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)

    def _is_whole(self, view: int) -> bool:
        path = self._array_path(view)
        expected, state = self._read_hash(view), path.stat()
        identity = (str(path), state.st_ino, state.st_size, state.st_mtime_ns, expected)
        if identity in _verified:
            return True
        found = hash_file(path)
        if found != expected:
            _LOGGER.warning(
                "%s is damaged: its sha256 must be %s. Got %s. It is computed again.",
                path,
                expected or "that of a readable file beside it",
                found,
            )
            return False
        _verified.add(identity)
        return True

    def _read_hash(self, view: int) -> str:
        try:
            return str(json.loads(self._record_path(view).read_text(encoding="utf-8"))["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
