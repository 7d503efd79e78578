"""Opens prepared datasets: development data for trials, test data for the evaluation only."""

# N = images, H = height, W = width, C = channels, L = continuous labels

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml_core.config.data import DataBase
from dml_core.config.problems import suggest
from dml_core.data.prepared_info import (
    PreparedInfo,
    check_file_sizes,
    check_values_match,
    load_info,
)
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.splits import ClassSplit, list_names, load_split
from dml_core.data.writing import CONTINUOUS_PREFIX, IMAGES_FILE, MANIFEST_FILE


@dataclass(frozen=True, eq=False)
class PackedImages:
    """A selection of images of a memory-mapped file, in any order."""

    file: Path
    buffer: np.ndarray
    """Bytes of the file, mapped read-only and shared by all selections."""
    offsets: np.ndarray
    """(N,) int64, offset of each image."""
    sizes: np.ndarray
    """(N, 2) int64, height and width of each image."""
    channels: int

    def __len__(self) -> int:
        return len(self.offsets)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the file itself; pixels are never pickled.
        return map_images, (self.file, self.offsets, self.sizes, self.channels)

    @cached_property
    def shape(self) -> tuple[int, int, int] | None:
        """(H, W, C) of all images, or None if sizes differ or there are no images."""
        if len(self) == 0 or bool((self.sizes != self.sizes[0]).any()):
            return None
        return int(self.sizes[0, 0]), int(self.sizes[0, 1]), self.channels

    def image(self, index: int) -> np.ndarray:
        """Returns an image as a read-only (H, W, C) uint8 view of the file."""
        height, width = (int(side) for side in self.sizes[index])
        start = int(self.offsets[index])
        pixels = self.buffer[start : start + height * width * self.channels]
        return pixels.reshape(height, width, self.channels)

    def select(self, indices: np.ndarray) -> "PackedImages":
        """Returns a selection that shares the memory map."""
        sizes = self.sizes[indices]
        return PackedImages(self.file, self.buffer, self.offsets[indices], sizes, self.channels)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Returns a (B, H, W, C) copy of some images, which must have one size."""
        assert self.shape is not None, "gather needs images of one size"
        if self._grid is not None:
            every, rows = self._grid
            return np.asarray(every[rows[indices]])
        batch = np.empty((len(indices), *self.shape), dtype=np.uint8)
        for row, index in enumerate(indices):
            batch[row] = self.image(int(index))
        return batch

    @cached_property
    def _grid(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The file as (M, H, W, C) and the row of each image, if all images have one size."""
        if self.shape is None:
            return None
        num_bytes = int(np.prod(self.shape))
        if len(self.buffer) % num_bytes or bool((self.offsets % num_bytes).any()):
            return None
        return self.buffer.reshape(-1, *self.shape), self.offsets // num_bytes


def map_images(file: Path, offsets: np.ndarray, sizes: np.ndarray, channels: int) -> PackedImages:
    """Maps a file of packed images into memory; the file may be empty."""
    is_empty = file.stat().st_size == 0
    # A plain array over the map: slicing np.memmap is several times slower.
    mapped = np.empty(0, np.uint8) if is_empty else np.asarray(np.memmap(file, np.uint8, mode="r"))
    return PackedImages(file, mapped, offsets, sizes, channels)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with their labels; pixels stay on disk until they are read."""

    packed: PackedImages
    labels: np.ndarray
    """(N,) int64, from 0 to num_classes - 1."""
    class_names: tuple[str, ...]
    """Name of each label."""
    roles: np.ndarray
    """(N,) text: train, test, query or gallery."""
    paths: list[str]
    """Name of each image in its dataset."""
    continuous: np.ndarray
    """(N, L) float64, the unscaled columns of data.continuous_labels; L may be 0."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def sizes(self) -> np.ndarray:
        """(N, 2) int64, height and width of each image."""
        return self.packed.sizes

    @property
    def channels(self) -> int:
        """Channels of each image, 1 or 3."""
        return self.packed.channels

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(H, W, channels) of all images, or None if sizes differ."""
        return self.packed.shape

    def image(self, index: int) -> np.ndarray:
        """Returns an image as a read-only (H, W, channels) uint8 view."""
        return self.packed.image(index)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Returns a (B, H, W, channels) copy of some images; all must have one size."""
        return self.packed.gather(indices)

    def select(self, indices: np.ndarray) -> "ImageSet":
        """Returns a selection; labels are renumbered from 0 over the classes present."""
        indices = np.asarray(indices, dtype=np.int64) if len(indices) == 0 else np.asarray(indices)
        assert np.issubdtype(indices.dtype, np.integer), f"indices are {indices.dtype}"
        present, labels = np.unique(self.labels[indices], return_inverse=True)
        return ImageSet(
            packed=self.packed.select(indices),
            labels=labels.reshape(-1).astype(np.int64),
            class_names=tuple(self.class_names[label] for label in present),
            roles=self.roles[indices],
            paths=[self.paths[index] for index in indices],
            continuous=self.continuous[indices],
        )

    def select_classes(self, names: Sequence[str]) -> "ImageSet":
        """Returns the images of some classes, in their present order."""
        chosen = set(names)
        is_wanted = np.array([name in chosen for name in self.class_names], dtype=bool)
        return self.select(np.flatnonzero(is_wanted[self.labels]))


@dataclass(frozen=True)
class DevelopmentData:
    """The data of a trial; no class is in both sets."""

    train: ImageSet
    validation: ImageSet
    info: PreparedInfo


def open_development(config: DataBase) -> DevelopmentData:
    """Opens the training and validation images of data.fold; never reads the test folder.

    Raises:
        DatasetError: if the data are not prepared, were prepared with other values, are damaged,
            or lack a configured continuous label.
    """
    images, info, split = _open_part(config, "development")
    if config.fold >= len(split.folds):
        raise DatasetError(
            f"data.fold must be below data.folds={len(split.folds)}. Got {config.fold}."
        )
    return DevelopmentData(
        train=images.select_classes(split.train_classes(config.fold)),
        validation=images.select_classes(split.validation_classes(config.fold)),
        info=info,
    )


def open_test(config: DataBase) -> tuple[ImageSet, PreparedInfo]:
    """Opens the images of the test classes; only the final evaluation may call this."""
    images, info, _ = _open_part(config, "test")
    return images, info


def _open_part(config: DataBase, part: str) -> tuple[ImageSet, PreparedInfo, ClassSplit]:
    folder = config.prepared_path
    info = load_info(folder)
    check_values_match(info, config, folder)
    check_file_sizes(info, folder, (f"{part}/{IMAGES_FILE}", f"{part}/{MANIFEST_FILE}"))
    _check_columns_exist(config, info)
    split = load_split(folder, split_hash=info.split_hash)
    file = folder / part / MANIFEST_FILE
    table = _read_manifest(file)
    _check_classes(table, file, split.development if part == "development" else split.test)
    _check_labels_are_finite(table, file, config.continuous_labels)
    return _to_image_set(folder / part / IMAGES_FILE, table, info, config), info, split


def _read_manifest(file: Path) -> pa.Table:
    try:
        return pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"{file} is damaged ({error}). Run: dml prepare") from error


def _check_classes(table: pa.Table, file: Path, wanted: Sequence[str]) -> None:
    """Raises DatasetError if a part has classes of the other, or lacks some of its own."""
    odd = set(table["class_name"].to_pylist()) ^ set(wanted)
    if odd:
        raise DatasetError(
            f"{file} must have the classes that {SPLIT_FILE} assigns to it. Only one of both files "
            f"has {list_names(sorted(map(str, odd)))}. Run: dml prepare"
        )


def _check_labels_are_finite(table: pa.Table, file: Path, columns: Sequence[str]) -> None:
    for name in columns:
        column = CONTINUOUS_PREFIX + name
        values = table[column].to_numpy() if column in table.column_names else np.array([np.nan])
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise DatasetError(
                f"{file}, column {column!r}: row {bad[0] + 1} must be a finite number. Got "
                f"{values[bad[0]]}, and {len(bad) - 1:,} more like it. Run: dml prepare"
            )


def _check_columns_exist(config: DataBase, info: PreparedInfo) -> None:
    for name in config.continuous_labels:
        if name not in info.continuous_columns:
            there = ", ".join(info.continuous_columns) or "none"
            raise DatasetError(
                f"data.continuous_labels must name continuous labels of dataset {info.name!r}. "
                f"Got {name!r}. Available: {there}.{suggest(name, info.continuous_columns)}"
            )


def _to_image_set(file: Path, table: pa.Table, info: PreparedInfo, config: DataBase) -> ImageSet:
    heights, widths = table["height"].to_numpy(), table["width"].to_numpy()
    sizes = np.stack([heights, widths], axis=1)
    packed = map_images(file, table["offset"].to_numpy(), sizes, info.channels)
    columns = [table[CONTINUOUS_PREFIX + name].to_numpy() for name in config.continuous_labels]
    continuous = np.stack(columns, axis=1) if columns else np.empty((len(packed), 0))
    return ImageSet(
        packed=packed,
        labels=table["label"].to_numpy(),
        class_names=tuple(sorted(set(table["class_name"].to_pylist()))),
        roles=np.array(table["role"].to_pylist(), dtype=str),
        paths=table["path"].to_pylist(),
        continuous=continuous,
    )
