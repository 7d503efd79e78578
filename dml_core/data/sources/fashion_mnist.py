"""Lists Fashion-MNIST from its four idx files."""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml_core.config.data import FashionMnistData
from dml_core.data.records import DatasetError, ImageRecord, SourceListing
from dml_core.data.sources.raw_search import Distribution, RawSearch

_UNSIGNED_BYTE = 0x08


def read_idx(file: Path, *, num_axes: int) -> NDArray[np.uint8]:
    """Returns the uint8 array in an idx file, plain or gzipped (detected by its first bytes).

    The header is two zero bytes, the type (8 for unsigned bytes), the number of axes, and the
    length of each axis as 4 bytes, big-endian.

    Args:
        file: the idx file.
        num_axes: required number of axes: 1 for labels, 3 for images.

    Raises:
        DatasetError: if the header or the length of the file is wrong.
    """
    content = _read_bytes(file)
    header_length = 4 + 4 * num_axes
    magic = bytes([0, 0, _UNSIGNED_BYTE, num_axes])
    if content[:4] != magic or len(content) < header_length:
        raise DatasetError(
            f"{file} must be an idx file of bytes with {num_axes} axes, which starts with "
            f"{magic.hex()}. Got {content[:4].hex() or 'an empty file'}. Download it again."
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header_length])
    expected, found = math.prod(shape), len(content) - header_length
    if expected != found:
        raise DatasetError(
            f"{file} must hold {expected:,} bytes after its header, which says "
            f"{' x '.join(map(str, shape))}. Found {found:,}. The download may be truncated: "
            "download it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_length).reshape(shape)


def _read_bytes(file: Path) -> bytes:
    content = file.read_bytes()
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DatasetError(
            f"{file} must be a complete gzip file. Its data is truncated or damaged: {error}. "
            "Download it again."
        ) from error


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
"""Images in each pair of files, by the prefix of the file names."""

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

    The official split is within classes and cannot test on unseen classes, so every image is
    `undecided` and data.test_fraction splits by class.

    Raises:
        DatasetError: if a file is missing, truncated, or has another length than the official one.
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
