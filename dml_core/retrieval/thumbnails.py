"""Small copies of images for pages.

They are decoded and encoded anew, so that a page never gets a script, a location or other metadata
of a file.
"""

import base64
import io
from pathlib import Path

from PIL import Image

from dml_core.data.image_decoding import BadImage, decode_image
from dml_core.data.packing import read_image_bytes

SIDE_PX = 320
LARGE_PX = 1600
_QUALITY = 85


def make_thumbnail(content: bytes, *, side_px: int = SIDE_PX) -> bytes:
    """Returns an image file as a small JPEG, upright.

    Args:
        content: the bytes of the image file.
        side_px: its longer side afterwards; a smaller image keeps its size.

    Raises:
        BadImage: if the bytes are not a usable image.
    """
    image = Image.fromarray(decode_image(content, color="rgb", enough_px=side_px))
    image.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def thumbnail_of_file(path: Path, *, side_px: int = SIDE_PX) -> bytes | None:
    """Returns the thumbnail of an image file; None where it is gone or cannot be read any more."""
    try:
        return make_thumbnail(read_image_bytes(path, root=None), side_px=side_px)
    except BadImage:
        return None


def to_data_address(thumbnail: bytes | None) -> str:
    """Returns a thumbnail as a data URL; empty for none."""
    if thumbnail is None:
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(thumbnail).decode()}"
