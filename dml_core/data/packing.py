"""Brings one image of a dataset into the form in which it is packed."""

# H = height, W = width, C = channels (1 or 3)

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from dml_core.config.data import DataBase
from dml_core.data.image_decoding import BadImage, Color, check_size, decode_image
from dml_core.data.image_reading import read_image_bytes
from dml_core.data.records import DatasetError, ImageRecord

UNREADABLE = "unreadable"
"""Stands for the digest of a source whose bytes cannot be read."""


@dataclass(frozen=True)
class PackingChoices:
    """The configuration's values that decide the packed pixels."""

    image_size_px: int
    resize: Literal["shorter", "square"]
    color: Color

    @property
    def channels(self) -> int:
        """Channels of each packed image."""
        return 3 if self.color == "rgb" else 1


@dataclass(frozen=True)
class PackedImage:
    """What became of one record."""

    digest: str
    """sha256 of the source's bytes, or of its drawn pixels and their shape."""
    pixels: np.ndarray | None
    """(H, W, C) uint8; None where the image was refused."""
    reason: str = ""
    """Why it was refused."""


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
            return PackedImage(digest, resize_image(_to_channels(record, choices), choices))
        content = read_image_bytes(_file_of(record), root=root)
        digest = hashlib.sha256(content).hexdigest()
        # Twice the wanted side leaves the resampling filter enough to work with.
        enough_px = 2 * choices.image_size_px
        pixels = decode_image(content, color=choices.color, enough_px=enough_px)
        return PackedImage(digest, resize_image(pixels, choices))
    except BadImage as error:
        return PackedImage(digest, None, error.reason)


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


def resize_image(pixels: np.ndarray, choices: PackingChoices) -> np.ndarray:
    """Returns (H, W, C) of the chosen size; an image that has it already is returned as it is."""
    height, width = pixels.shape[:2]
    size = target_size(height, width, choices)
    if size == (height, width):
        return pixels
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    resized = image.resize((size[1], size[0]), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(resized).reshape(*size, pixels.shape[2])


def target_size(height: int, width: int, choices: PackingChoices) -> tuple[int, int]:
    """Returns the packed height and width of an image.

    Example:
        300 x 200 with shorter and 100 px gives 150 x 100, with square 100 x 100.
    """
    side = choices.image_size_px
    if choices.resize == "square":
        return side, side
    shorter = min(height, width)
    return max(side, round(height * side / shorter)), max(side, round(width * side / shorter))


def _to_channels(record: ImageRecord, choices: PackingChoices) -> np.ndarray:
    pixels = record.pixels
    assert pixels is not None
    assert pixels.dtype == np.uint8, f"{record.path}: pixels must be uint8, not {pixels.dtype}"
    assert pixels.ndim == 2 or pixels.shape[2:] == (3,), f"{record.path}: shape {pixels.shape}"
    check_size(pixels.shape[1], pixels.shape[0])
    mode = "RGB" if choices.color == "rgb" else "L"
    # L and RGB convert to each other as they do for files, so both kinds of source agree.
    converted = np.asarray(Image.fromarray(pixels).convert(mode))
    return converted if converted.ndim == 3 else converted[:, :, None]


def _check_names(record: ImageRecord) -> None:
    try:
        f"{record.path}{record.class_name}".encode()
    except UnicodeEncodeError as error:
        raise BadImage("has a name or class that is not valid UTF-8") from error


def _file_of(record: ImageRecord) -> Path:
    if record.file is None:
        raise DatasetError(f"record {record.path!r} must have a file or pixels. Got neither.")
    return record.file
