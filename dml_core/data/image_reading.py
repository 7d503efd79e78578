"""Reads an image file from disk, or says in one sentence why it cannot be used."""

import os
import stat
from pathlib import Path

import numpy as np

from dml_core.data.image_decoding import BadImage, Color, decode_image

MAX_FILE_BYTES = 512 * 2**20
"""Larger files are refused: no benchmark has them, and each is held in memory whole."""


def read_image(file: Path, *, root: Path | None, color: Color) -> np.ndarray:
    """Returns the image as (H, W, C) uint8, with C of 3 (rgb) or 1 (gray).

    Args:
        file: the image file.
        root: folder that the file must lie in once links are followed; None allows any place.
        color: rgb or gray.

    Raises:
        BadImage: with the reason, for everything that is wrong with the file.
    """
    return decode_image(read_image_bytes(file, root=root), color=color)


def read_image_bytes(file: Path, *, root: Path | None) -> bytes:
    """Returns the content of a regular file inside the root, or raises BadImage."""
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
        # A shared dataset must not be able to pull in files from elsewhere on the machine.
        raise BadImage("leaves the dataset's folder through a link")
    return place


def _read_regular_file(place: str) -> bytes:
    # Asked before opening, since opening a pipe waits for a writer that may never come.
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
