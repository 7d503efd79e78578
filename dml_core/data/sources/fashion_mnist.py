"""Lists Fashion-MNIST from its four idx files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml_core.config.data import FashionMnistData
from dml_core.data.records import DatasetError, ImageRecord, SourceListing
from dml_core.data.sources.distribution import Distribution
from dml_core.data.sources.idx import read_idx
from dml_core.data.sources.raw_search import RawSearch

FASHION_MNIST = Distribution(
    name="fashion_mnist",
    title="Fashion-MNIST (published by Zalando Research; Debian has it as the package "
    "dataset-fashion-mnist)",
    download="the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
    "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz",
    archive_stems=("fashion*mnist*",),
    in_parts=True,
)
FASHION_MNIST_COUNTS: Mapping[str, int] = {"train": 60_000, "t10k": 10_000}
"""Images in each pair of files, by the beginning of the files' names."""

CLASS_NAMES = (
    "0_tshirt",
    "1_trouser",
    "2_pullover",
    "3_dress",
    "4_coat",
    "5_sandal",
    "6_shirt",
    "7_sneaker",
    "8_bag",
    "9_ankle_boot",
)


def list_fashion_mnist(
    config: FashionMnistData, *, counts: Mapping[str, int] = FASHION_MNIST_COUNTS
) -> SourceListing:
    """Returns all images of both pairs of files, with their pixels.

    The official split lies within the classes, which is of no use for unseen classes, so every
    image is `undecided` and data.test_fraction decides by class.

    Raises:
        DatasetError: if a file is missing, cut off, or not as long as the official one.
    """
    search = RawSearch(config, FASHION_MNIST)
    records = [
        record for part, count in counts.items() for record in _read_part(search, part, count)
    ]
    return SourceListing(records=sorted(records, key=lambda record: record.path), root=None)


def _read_part(search: RawSearch, part: str, count: int) -> list[ImageRecord]:
    image_file = _find(search, f"{part}-images-idx3-ubyte")
    label_file = _find(search, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(image_file, num_axes=3), read_idx(label_file, num_axes=1)
    _check_length(image_file, images, count)
    _check_length(label_file, labels, count)
    if labels.max(initial=0) >= len(CLASS_NAMES):
        raise DatasetError(
            f"{label_file} must hold labels from 0 to {len(CLASS_NAMES) - 1}. "
            f"Got {labels.max()}. Download it again."
        )
    return [
        ImageRecord(
            path=f"{part}/{index:05d}",
            class_name=CLASS_NAMES[label],
            role="undecided",
            pixels=images[index],
        )
        for index, label in enumerate(labels.tolist())
    ]


def _find(search: RawSearch, name: str) -> Path:
    folder = search.find(name)
    if folder is not None:
        return folder / name
    return search.require(f"{name}.gz") / f"{name}.gz"


def _check_length(file: Path, array: NDArray[np.uint8], count: int) -> None:
    if len(array) != count:
        raise DatasetError(
            f"{file} must hold {count:,} entries to be the official Fashion-MNIST. "
            f"Found {len(array):,}. {FASHION_MNIST.advice()}"
        )
