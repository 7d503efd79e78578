"""Reads and packs one image of a dataset."""

import hashlib
import json
import os
import stat
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
)
from dml_core.data.records import DatasetError, ImageRecord

MAX_FILE_BYTES = 512 * 2**20
"""Larger files are refused, because a file is read into memory completely."""


def read_image_bytes(file: Path, *, root: Path | None) -> bytes:
    """Returns the content of a regular file inside the root, or raises BadImage.

    Args:
        file: the image file.
        root: folder that must contain the file after links are resolved; None allows any folder.
    """
    place = _follow_links(file, root)
    try:
        return _read_regular_file(place)
    except PermissionError as error:
        raise BadImage("may not be read: permission denied") from error
    except OSError as error:
        raise BadImage(f"cannot be read: {error.strerror or error}") from error


def _follow_links(file: Path, root: Path | None) -> str:
    try:
        place = os.path.realpath(file, strict=True)
    except FileNotFoundError as error:
        is_link = os.path.islink(file)
        reason = "is a link to a file that does not exist" if is_link else "does not exist"
        raise BadImage(reason) from error
    except (OSError, ValueError) as error:
        raise BadImage(f"cannot be found: {getattr(error, 'strerror', error)}") from error
    if root is not None and not Path(place).is_relative_to(os.path.realpath(root)):
        # A shared dataset must not read other files of the machine.
        raise BadImage("leaves the dataset's folder through a link")
    return place


def _read_regular_file(place: str) -> bytes:
    # Checked before opening, because opening a pipe blocks until it has a writer.
    _check_kind(os.stat(place))
    with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        facts = os.fstat(stream.fileno())
        _check_kind(facts)
        if facts.st_size > MAX_FILE_BYTES:
            raise BadImage(f"has {facts.st_size} bytes, above the limit of {MAX_FILE_BYTES}")
        content = stream.read()
    if not content:
        raise BadImage("is empty (zero bytes)")
    return content


def _check_kind(facts: os.stat_result) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise BadImage("is a folder, not a file")
    if not stat.S_ISREG(facts.st_mode):
        raise BadImage("is a pipe, socket or device, not a regular file")


# H = height, W = width, C = channels (1 or 3)


UNREADABLE = "unreadable"
"""Digest of an unreadable source."""


@dataclass(frozen=True)
class PackedImage:
    """The result of packing one record."""

    digest: str
    """sha256 of the source's bytes, or of drawn pixels and their shape."""
    pixels: np.ndarray | None
    """(H, W, C) uint8; None if the image was refused."""
    reason: str = ""
    """Reason of the refusal."""
    fingerprint: np.ndarray | None = None
    """From `compute_fingerprint`, to find near-duplicates."""


def choices_of(config: DataBase) -> PackingChoices:
    """Returns the part of the configuration that determines the packed pixels."""
    return PackingChoices(config.image_size_px, config.resize, config.color)


def pack_record(record: ImageRecord, *, root: Path | None, choices: PackingChoices) -> PackedImage:
    """Returns the packed image of a record, or the reason of its refusal."""
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
    """Returns the same digest as `pack_record`, without decoding."""
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
