"""Converts an image (file bytes, Pillow image or pixels) to 8-bit pixels of the dataset's size.

Registered models contain a copy of this file, so that they prepare images like the dataset. It
therefore imports nothing from this project.
"""

# H = height, W = width, C = channels (1 or 3)

import io
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

Color = Literal["rgb", "gray"]

PIXEL_LIMIT = 80_000_000
"""Largest number of pixels of an image; below the threshold of Pillow's own warning."""
MIN_SIDE_PX = 2
"""Images with a shorter side are too small to learn from."""
MAX_ASPECT = 20.0
"""Largest ratio of longer to shorter side; above it, resizing gives extremely long images."""

# Listed, because Pillow would otherwise try formats that start other programs (EPS).
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
_SIGNATURES = {
    (0, b"\xff\xd8\xff"): "JPEG",
    (0, b"\x89PNG"): "PNG",
    (0, b"GIF8"): "GIF",
    (8, b"WEBP"): "WEBP",
    (0, b"II*\x00"): "TIFF",
    (0, b"MM\x00*"): "TIFF",
    (4, b"ftypavif"): "AVIF",
}
"""Offset and bytes that identify a format."""


class BadImage(ValueError):
    """An unusable image; the message completes a sentence that starts with the file."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class PackingChoices:
    """The configured values that determine the packed pixels."""

    image_size_px: int
    resize: Literal["shorter", "square"]
    color: Color

    @property
    def channels(self) -> int:
        """Channels of each packed image."""
        return 3 if self.color == "rgb" else 1


def pack_content(content: bytes, choices: PackingChoices) -> np.ndarray:
    """Returns (H, W, C) uint8 of an image file: decoded, upright, in the chosen color and size.

    Raises:
        BadImage: if the bytes are not a usable image.
    """
    # Twice the target side is enough for the resampling filter.
    enough_px = 2 * choices.image_size_px
    return resize_image(decode_image(content, color=choices.color, enough_px=enough_px), choices)


def pack_pixels(pixels: np.ndarray, choices: PackingChoices) -> np.ndarray:
    """Returns (H, W, C) uint8 of (H, W) gray or (H, W, 3) RGB pixels, in color and size."""
    assert pixels.dtype == np.uint8, f"pixels must be uint8, not {pixels.dtype}"
    assert pixels.ndim == 2 or pixels.shape[2:] == (3,), f"pixels have the shape {pixels.shape}"
    check_size(pixels.shape[1], pixels.shape[0])
    # The same conversion as for files, so that both kinds of source agree.
    return resize_image(_to_array(Image.fromarray(pixels), choices.color), choices)


def pack_opened(image: Image.Image, choices: PackingChoices) -> np.ndarray:
    """Returns (H, W, C) uint8 of a decoded Pillow image, which is left unchanged."""
    check_size(*image.size)
    upright = ImageOps.exif_transpose(image)
    return resize_image(_to_array(upright, choices.color), choices)


def resize_image(pixels: np.ndarray, choices: PackingChoices) -> np.ndarray:
    """Returns (H, W, C) in the chosen size; an image of that size is returned unchanged."""
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


def decode_image(content: bytes, *, color: Color, enough_px: int | None = None) -> np.ndarray:
    """Returns the first frame as (H, W, C) uint8, upright, with transparency over white.

    Animations (GIF, APNG, WebP) and files with several pages give their first image.

    Args:
        content: the whole file.
        color: rgb gives three channels, gray one.
        enough_px: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, which is much faster, if
            no side gets shorter than this; None keeps the full size.
    """
    with warnings.catch_warnings():
        # Warnings about metadata are harmless; warnings about bombs become errors.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with _open(content) as image:
                if enough_px is not None:
                    image.draft(None, (enough_px, enough_px))
                return _to_array(ImageOps.exif_transpose(_loaded(image)), color)
        except (BadImage, MemoryError):
            raise
        except Exception as error:
            # Pillow's decoders raise many kinds of exceptions for crafted files.
            raise BadImage(f"cannot be decoded: {type(error).__name__}: {error}") from error


def check_size(width: int, height: int) -> None:
    """Rejects images that are too large to decode, too small to use, or too long and thin."""
    shape = f"{width} x {height} px"
    if width * height > PIXEL_LIMIT:
        raise BadImage(f"is a decompression bomb: {shape}, above the limit of {PIXEL_LIMIT} pixels")
    if min(width, height) < MIN_SIDE_PX:
        raise BadImage(f"is too small: {shape}, where each side needs at least {MIN_SIDE_PX}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise BadImage(
            f"is too long and thin: {shape}, where one side may be {MAX_ASPECT:g} times the other"
        )


def _open(content: bytes) -> Image.Image:
    Image.init()
    known = [name for name in FORMATS if name in Image.OPEN]
    try:
        image = Image.open(io.BytesIO(content), formats=known)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise BadImage(
            f"is a decompression bomb: above the limit of {PIXEL_LIMIT} pixels"
        ) from error
    except OSError as error:
        raise BadImage(_describe_unopened(content)) from error
    check_size(*image.size)
    return image


def _describe_unopened(content: bytes) -> str:
    for (place, signature), name in _SIGNATURES.items():
        if content.startswith(signature, place):
            return f"is damaged or truncated: begins like {name}, but cannot be opened"
    return f"is not an image of a known format ({', '.join(FORMATS)})"


def _loaded(image: Image.Image) -> Image.Image:
    try:
        image.load()
    except (OSError, SyntaxError, EOFError) as error:
        text = str(error)
        if "truncated" in text.lower() or isinstance(error, EOFError):
            raise BadImage(f"is truncated: the file ends before its last pixel ({text})") from error
        raise BadImage(f"is damaged: {text}") from error
    return image


def _to_array(image: Image.Image, color: Color) -> np.ndarray:
    mode = "RGB" if color == "rgb" else "L"
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_scale_deep_gray(image))
    elif image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    pixels = np.array(image if image.mode == mode else image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _scale_deep_gray(image: Image.Image) -> np.ndarray:
    """Returns (H, W) uint8 of a 16-bit gray image; white stays white."""
    if image.mode == "F":
        raise BadImage("has floating-point pixels of unknown range")
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise BadImage("has 32-bit pixels beyond 16 bits, of unknown range")
    return ((values * 255 + 32767) // 65535).astype(np.uint8)
