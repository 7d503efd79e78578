"""Reads the idx format: a big-endian header, then the bytes of an array."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml_core.data.records import DatasetError

_UNSIGNED_BYTE = 0x08


def read_idx(file: Path, *, num_axes: int) -> NDArray[np.uint8]:
    """Returns the uint8 array in an idx file, plain or gzipped (told by its first bytes).

    The header is two zero bytes, the type (8 for unsigned bytes), the number of axes, and the
    length of each axis as 4 bytes, the highest first.

    Args:
        file: the idx file.
        num_axes: axes that the array must have: 1 for labels, 3 for images.

    Raises:
        DatasetError: if the header or the length of the file is not as it must be.
    """
    content = _read_bytes(file)
    header_length = 4 + 4 * num_axes
    magic = bytes([0, 0, _UNSIGNED_BYTE, num_axes])
    if content[:4] != magic or len(content) < header_length:
        raise DatasetError(
            f"{file} must be an idx file of bytes with {num_axes} axes, which begins with "
            f"{magic.hex()}. Got {content[:4].hex() or 'an empty file'}. Download it again."
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header_length])
    expected, found = math.prod(shape), len(content) - header_length
    if expected != found:
        raise DatasetError(
            f"{file} must hold {expected:,} bytes after its header, for that says "
            f"{' x '.join(map(str, shape))}. Found {found:,}. The download is perhaps cut off: "
            "fetch it again."
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
            f"{file} must be whole to be unpacked. Its gzip data ends or breaks early: {error}. "
            "Download it again."
        ) from error
