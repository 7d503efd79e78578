"""Brings one image of a dataset into the form in which it is packed."""

# H = height, W = width, C = channels (1 or 3)

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dml_core.config.data import DataBase
from dml_core.data.duplicates import compute_fingerprint
from dml_core.data.image_decoding import (
    BadImage,
    PackingChoices,
    pack_content,
    pack_pixels,
    resize_image,
    target_size,
)
from dml_core.data.image_reading import read_image_bytes
from dml_core.data.records import DatasetError, ImageRecord

__all__ = [
    "PackedImage",
    "PackingChoices",
    "choices_of",
    "digest_pixels",
    "digest_record",
    "pack_record",
    "resize_image",
    "target_size",
]

UNREADABLE = "unreadable"
"""Stands for the digest of a source whose bytes cannot be read."""


@dataclass(frozen=True)
class PackedImage:
    """What became of one record."""

    digest: str
    """sha256 of the source's bytes, or of its drawn pixels and their shape."""
    pixels: np.ndarray | None
    """(H, W, C) uint8; None where the image was refused."""
    reason: str = ""
    """Why it was refused."""
    fingerprint: np.ndarray | None = None
    """What images that look alike have in common, from `compute_fingerprint`."""


def choices_of(config: DataBase) -> PackingChoices:
    """Returns the part of the configuration that decides the packed pixels."""
    return PackingChoices(config.image_size_px, config.resize, config.color)


def pack_record(record: ImageRecord, *, root: Path | None, choices: PackingChoices) -> PackedImage:
    """Returns the record's image, resized, or the reason why it is refused."""
    digest = UNREADABLE
    try:
        _check_names(record)
        if record.pixels is not None:
            digest = digest_pixels(record.pixels)
            return _pack(digest, pack_pixels(record.pixels, choices))
        content = read_image_bytes(_file_of(record), root=root)
        digest = hashlib.sha256(content).hexdigest()
        return _pack(digest, pack_content(content, choices))
    except BadImage as error:
        return PackedImage(digest, None, error.reason)


def _pack(digest: str, pixels: np.ndarray) -> PackedImage:
    return PackedImage(digest, pixels, fingerprint=compute_fingerprint(pixels))


def digest_record(record: ImageRecord, *, root: Path | None) -> str:
    """Returns the digest that `pack_record` gives, without decoding anything."""
    try:
        _check_names(record)
        if record.pixels is not None:
            return digest_pixels(record.pixels)
        return hashlib.sha256(read_image_bytes(_file_of(record), root=root)).hexdigest()
    except BadImage:
        return UNREADABLE


def digest_pixels(pixels: np.ndarray) -> str:
    """Returns the sha256 of an array's shape and bytes."""
    shape = json.dumps(list(pixels.shape)).encode()
    return hashlib.sha256(shape + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def _check_names(record: ImageRecord) -> None:
    try:
        f"{record.path}{record.class_name}".encode()
    except UnicodeEncodeError as error:
        raise BadImage("has a name or class that is not valid UTF-8") from error


def _file_of(record: ImageRecord) -> Path:
    if record.file is None:
        raise DatasetError(f"record {record.path!r} must have a file or pixels. Got neither.")
    return record.file
