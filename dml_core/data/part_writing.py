"""Writes one part of a prepared dataset: packed images and the table that describes them."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml_core.data.records import ImageRecord

IMAGES_FILE = "images.bin"
MANIFEST_FILE = "manifest.parquet"
CONTINUOUS_PREFIX = "continuous."
"""Precedes the names of continuous columns, so that one called `height` meets no other."""

_SCHEMA = [
    ("path", pa.string()),
    ("class_name", pa.string()),
    ("label", pa.int64()),
    ("role", pa.string()),
    ("offset", pa.int64()),
    ("height", pa.int64()),
    ("width", pa.int64()),
]


class PartWriter:
    """Appends images to images.bin, and writes manifest.parquet at the end."""

    def __init__(self, folder: Path, continuous_columns: Sequence[str]) -> None:
        folder.mkdir()
        self._folder = folder
        self._continuous_columns = list(continuous_columns)
        self._stream = (folder / IMAGES_FILE).open("wb")
        self._digest = hashlib.sha256()
        self._offset = 0
        self._rows: list[dict[str, Any]] = []
        self.class_counts: Counter[str] = Counter()
        """Images of each class so far."""

    def add(self, record: ImageRecord, role: str, pixels: np.ndarray) -> None:
        """Appends one image.

        Args:
            record: names the image.
            role: train, test, query or gallery.
            pixels: (H, W, C) uint8.
        """
        content = np.ascontiguousarray(pixels).tobytes()
        self._stream.write(content)
        self._digest.update(content)
        row = {"path": record.path, "class_name": record.class_name, "role": role}
        place = {"offset": self._offset, "height": pixels.shape[0], "width": pixels.shape[1]}
        continuous = {CONTINUOUS_PREFIX + k: float(v) for k, v in record.continuous.items()}
        self._rows.append({**row, **place, **continuous})
        self._offset += len(content)
        self.class_counts[record.class_name] += 1

    def finish(self) -> dict[str, str]:
        """Writes the manifest; returns each file's sha256, empty where not computed yet."""
        self.close()
        labels = {name: label for label, name in enumerate(sorted(self.class_counts))}
        for row in self._rows:
            row["label"] = labels[row["class_name"]]
        columns = [(CONTINUOUS_PREFIX + name, pa.float64()) for name in self._continuous_columns]
        table = pa.Table.from_pylist(self._rows, schema=pa.schema(_SCHEMA + columns))
        pq.write_table(table, self._folder / MANIFEST_FILE)
        part = self._folder.name
        return {
            f"{part}/{IMAGES_FILE}": self._digest.hexdigest(),
            f"{part}/{MANIFEST_FILE}": "",
        }

    def close(self) -> None:
        """Closes images.bin; safe to call twice."""
        self._stream.close()
