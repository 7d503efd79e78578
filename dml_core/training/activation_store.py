"""Files of cached activations: written once, each with its hash."""

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
"""Index of the first image, and the activations from it on."""

_verified: set[tuple[str, int, int, int, str]] = set()
"""Files that this process has verified and need not hash again."""


def store_root(data: DataBase) -> Path:
    """Returns the folder of all cached activations, beside the prepared data."""
    return data.prepared_path.parent / ".activations"


def list_stored(data: DataBase) -> list[Path]:
    """Returns the folders with the cached activations of a dataset."""
    return sorted(path for path in store_root(data).glob(f"{data.folder_name}-*") if path.is_dir())


@dataclass(frozen=True)
class StoredSet:
    """A folder with the activations of a set of images, one file per view."""

    folder: Path

    def open_view(self, view: int) -> np.ndarray | None:
        """Returns a view as a memory map; None if it is missing or damaged."""
        path = self._array_path(view)
        if not path.exists() or not self._is_intact(view):
            return None
        activations: np.ndarray = np.load(path, mmap_mode="r")
        return activations

    def has_view(self, view: int) -> bool:
        """Returns whether a view is on disk and intact."""
        return self.open_view(view) is not None

    def write_view(
        self, view: int, parts: Iterable[Rows], *, num_images: int, facts: dict[str, Any]
    ) -> None:
        """Writes a view atomically from parts in any order.

        Args:
            view: number of the view.
            parts: rows that together cover all images.
            num_images: images of the set.
            facts: origin of the activations, for the JSON record beside them.
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

    def _is_intact(self, view: int) -> bool:
        path = self._array_path(view)
        expected, state = self._read_hash(view), path.stat()
        identity = (str(path), state.st_ino, state.st_size, state.st_mtime_ns, expected)
        if identity in _verified:
            return True
        found = hash_file(path)
        if found != expected:
            _LOGGER.warning(
                "%s is damaged: its sha256 must be %s. Got %s. It will be recomputed.",
                path,
                expected or "that of its JSON record, which is unreadable",
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
