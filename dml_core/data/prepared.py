"""Opens prepared datasets: development data for trials, test data for the evaluation alone."""

# N = images, L = continuous labels, C = classes

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml_core.config.data import DataBase
from dml_core.config.problems import suggest
from dml_core.data.packed_images import PackedImages, map_images
from dml_core.data.part_writing import CONTINUOUS_PREFIX, IMAGES_FILE, MANIFEST_FILE
from dml_core.data.prepared_info import (
    PreparedInfo,
    check_file_sizes,
    check_values_match,
    load_info,
    verify_files,
)
from dml_core.data.records import DatasetError
from dml_core.data.split_file import load_split

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
    images, info = _open_part(config, "development")
    split = load_split(config.prepared_path, split_hash=info.split_hash)
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
    return _open_part(config, "test")


def _open_part(config: DataBase, part: str) -> tuple[ImageSet, PreparedInfo]:
    folder = config.prepared_path
    info = load_info(folder)
    check_values_match(info, config, folder)
    check_file_sizes(info, folder, (f"{part}/{IMAGES_FILE}", f"{part}/{MANIFEST_FILE}"))
    _check_columns_exist(config, info)
    table = _read_manifest(folder / part / MANIFEST_FILE)
    return _to_image_set(folder / part / IMAGES_FILE, table, info, config), info


def _read_manifest(file: Path) -> pa.Table:
    try:
        return pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"{file} is damaged ({error}). Run: dml prepare") from error


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
