"""Opens prepared datasets: development data for trials, test data for the evaluation alone."""

# N = images, H = height, W = width, C = channels
# N = images, L = continuous labels, C = classes

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
    verify_files,
)
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.splits import ClassSplit, list_names, load_split
from dml_core.data.writing import CONTINUOUS_PREFIX, IMAGES_FILE, MANIFEST_FILE


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Images of a memory-mapped file, in any order and selection."""

    file: Path
    buffer: np.ndarray
    """The file's bytes, mapped read-only and shared by all selections."""
    offsets: np.ndarray
    """(N,) int64, where each image begins."""
    sizes: np.ndarray
    """(N, 2) int64, height and width of each image."""
    channels: int

    def __len__(self) -> int:
        return len(self.offsets)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the file itself; the pixels never travel.
        return map_images, (self.file, self.offsets, self.sizes, self.channels)

    @cached_property
    def shape(self) -> tuple[int, int, int] | None:
        """(H, W, C) that all images have, or None when their sizes differ or there are none."""
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

    @cached_property
    def stack(self) -> np.ndarray | None:
        """All images as a read-only (N, H, W, C) view, or None where there cannot be one.

        There is one when all images have one size and lie at even distances in the file, as in
        a whole part, and in runs of it. A selection with gaps has none: see `gather`.
        """
        shape = self.shape
        if shape is None:
            return None
        steps = np.diff(self.offsets)
        step = int(steps[0]) if len(steps) else int(np.prod(shape))
        if step <= 0 or bool((steps != step).any()):
            return None
        first = self.image(0)
        strides = (step, *first.strides)
        return np.lib.stride_tricks.as_strided(first, (len(self), *shape), strides, writeable=False)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Returns (B, H, W, C) as a copy of some images, which must have one size."""
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
        """The whole file as (M, H, W, C) and each image's row, where all of it has one size."""
        if self.shape is None:
            return None
        num_bytes = int(np.prod(self.shape))
        if len(self.buffer) % num_bytes or bool((self.offsets % num_bytes).any()):
            return None
        return self.buffer.reshape(-1, *self.shape), self.offsets // num_bytes


def map_images(file: Path, offsets: np.ndarray, sizes: np.ndarray, channels: int) -> PackedImages:
    """Maps a file of packed images into memory; an empty file has no images."""
    is_empty = file.stat().st_size == 0
    # A plain array over the map: slicing a np.memmap is several times slower.
    mapped = np.empty(0, np.uint8) if is_empty else np.asarray(np.memmap(file, np.uint8, mode="r"))
    return PackedImages(file, mapped, offsets, sizes, channels)


__all__ = [
    "DevelopmentData",
    "ImageSet",
    "PreparedInfo",
    "open_development",
    "open_test",
    "verify_files",
]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with their labels; the pixels stay on disk until they are looked at."""

    packed: PackedImages
    labels: np.ndarray
    """(N,) int64, from 0 to num_classes - 1."""
    class_names: tuple[str, ...]
    """Name of each label."""
    roles: np.ndarray
    """(N,) text: train, test, query or gallery."""
    paths: list[str]
    """Each image's name in its dataset."""
    continuous: np.ndarray
    """(N, L) float64, the columns of data.continuous_labels as they were given; L may be 0."""

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
        """(H, W, channels) of all images, or None when their sizes differ."""
        return self.packed.shape

    @property
    def stack(self) -> np.ndarray | None:
        """All images as one read-only (N, H, W, channels) view, or None.

        None when sizes differ, or when a selection leaves gaps that no view can skip; `gather`
        then copies the wanted images.
        """
        return self.packed.stack

    def image(self, index: int) -> np.ndarray:
        """Returns an image as a read-only (H, W, channels) uint8 view."""
        return self.packed.image(index)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Returns a (B, H, W, channels) copy of some images; all must have one size."""
        return self.packed.gather(indices)

    def select(self, indices: np.ndarray) -> "ImageSet":
        """Returns some of the images, labels counted anew from 0 over the classes present."""
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
        """Returns the images of some classes, in their order here."""
        chosen = set(names)
        is_wanted = np.array([name in chosen for name in self.class_names], dtype=bool)
        return self.select(np.flatnonzero(is_wanted[self.labels]))


@dataclass(frozen=True)
class DevelopmentData:
    """What a trial may see; no class is in both sets."""

    train: ImageSet
    validation: ImageSet
    info: PreparedInfo


def open_development(config: DataBase) -> DevelopmentData:
    """Opens the training and validation images of data.fold; the test folder is not touched.

    Raises:
        DatasetError: if the data are not prepared, were prepared with other values than the
            configuration has now, are damaged, or lack a continuous label that it names.
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
    """Raises DatasetError where a part has classes of the other one, or lacks some of its own."""
    odd = set(table["class_name"].to_pylist()) ^ set(wanted)
    if odd:
        raise DatasetError(
            f"{file} must have the classes that {SPLIT_FILE} gives it. Only one of them has "
            f"{list_names(sorted(map(str, odd)))}. Run: dml prepare"
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
                f"Got {name!r}. There are: {there}.{suggest(name, info.continuous_columns)}"
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
