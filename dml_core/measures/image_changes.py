"""Changes test images, so that a model can be scored on what cameras and networks do to them."""

# B = batch, C = channels, H = height, W = width

import io
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from dml_core.config.image_changes import OCCLUDED, ImageChange
from dml_core.data.inputs import ALL, Inputs
from dml_core.seeding import numpy_stream

Place = Literal["center", "boundary"]

AMOUNTS = {
    "blur": (0.01, 0.015, 0.02, 0.03, 0.04),
    "noise": (0.05, 0.1, 0.15, 0.2, 0.3),
    "jpeg": (50, 30, 20, 10, 5),
    "rotation": (5, 10, 15, 30, 45),
    "crop": (0.9, 0.8, 0.7, 0.6, 0.5),
}
"""By severity from 1 to 5: the blur's standard deviation as a share of the side, the noise's as a
share of the range of pixels, the JPEG quality, the largest angle in degrees, and the side of the
crop as a share of the image's."""


class ChangedInputs:
    """Pixels of changed images: (B, C, H, W) uint8.

    Args:
        inputs: the pixels, as uint8.
        change: the change.
    """

    def __init__(self, inputs: Inputs, change: ImageChange) -> None:
        self._inputs = inputs
        self._change = change

    def __len__(self) -> int:
        return len(self._inputs)

    def plain(self, indices: np.ndarray) -> Tensor:
        """Returns evaluation inputs of the images, changed."""
        return change_images(self._inputs.plain(indices), indices, self._change)

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        """Returns training inputs of the images, changed."""
        batch = self._inputs.augmented(indices, stream, part)
        return change_images(batch, indices[part], self._change)


def change_images(batch: Tensor, indices: np.ndarray, change: ImageChange) -> Tensor:
    """Returns a changed copy of (B, C, H, W) uint8 images.

    What a corruption draws depends on its kind and the image's index alone. So every model and
    every severity has the same draws, whatever the batches are.

    Args:
        batch: the images, gray or RGB.
        indices: (B,) indices of the images.
        change: the change.
    """
    if change.family == OCCLUDED:
        place: Place = "center" if change.kind == "center" else "boundary"
        return occlude(batch, size=change.amount, place=place)
    corrupt = _CORRUPTIONS[change.kind]
    amount = AMOUNTS[change.kind][int(change.amount) - 1]
    changed = torch.empty_like(batch)
    for place_in_batch, index in enumerate(indices.tolist()):
        stream = numpy_stream(0, f"evaluation.corruption.{change.kind}", step=index)
        picture = corrupt(_to_picture(batch[place_in_batch]), amount, stream)
        changed[place_in_batch] = _to_tensor(picture)
    return changed


def _to_picture(pixels: Tensor) -> Image.Image:
    """Returns (C, H, W) uint8 pixels as a picture, gray with one channel."""
    values = pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(values[..., 0] if values.shape[2] == 1 else values))


def _to_tensor(picture: Image.Image) -> Tensor:
    values = torch.from_numpy(np.array(picture))
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1)


def _blur(picture: Image.Image, share: float, _: np.random.Generator) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(share * min(picture.size)))


def _add_noise(picture: Image.Image, share: float, stream: np.random.Generator) -> Image.Image:
    pixels = np.array(picture)
    noise = stream.standard_normal(pixels.shape, dtype=np.float32) * np.float32(255 * share)
    return Image.fromarray(np.rint(pixels + noise).clip(0, 255).astype(np.uint8))


def _compress(picture: Image.Image, quality: float, _: np.random.Generator) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=int(quality))
    return Image.open(buffer)


def _rotate(picture: Image.Image, degrees: float, stream: np.random.Generator) -> Image.Image:
    """Rotates by a random angle: images that all turn alike would still resemble each other."""
    angle = stream.uniform(-degrees, degrees)
    return picture.rotate(angle, resample=Image.Resampling.BILINEAR)


def _crop(picture: Image.Image, share: float, stream: np.random.Generator) -> Image.Image:
    """Cuts a box at a random place and resizes it to the size of the picture."""
    width, height = (max(1, round(share * side)) for side in picture.size)
    left, top = (
        math.floor(stream.random() * (whole - side + 1))
        for whole, side in zip(picture.size, (width, height), strict=True)
    )
    box = (left, top, left + width, top + height)
    return picture.resize(picture.size, Image.Resampling.BILINEAR, box=box)


_CORRUPTIONS: dict[str, Callable[[Image.Image, float, np.random.Generator], Image.Image]] = {
    "blur": _blur,
    "noise": _add_noise,
    "jpeg": _compress,
    "rotation": _rotate,
    "crop": _crop,
}


def occlude(images: Tensor, *, size: float, place: Place, fill: float | Tensor = 0.0) -> Tensor:
    """Returns a copy of the images with a region covered.

    `center` covers a central square with `size` times the image's sides. `boundary` covers a
    frame along the border with the same area, `size` squared of the image. Both hide the same
    number of pixels (up to whole rows and columns), so their curves are comparable.

    Args:
        images: (B, C, H, W), or any (..., H, W).
        size: side of the square as a share of the image's side, from 0 (nothing) to 1 (all).
        place: region to cover.
        fill: value of black. After a normalisation by channel it is (0 - mean) / std, as a tensor
            of shape (C, 1, 1).
    """
    if not 0 <= size <= 1:
        raise ValueError(
            f"evaluation.occlusion must hold shares of the image's side from 0 to 1. Got {size}."
        )
    if place not in ("center", "boundary"):
        raise ValueError(f"occlude: place must be 'center' or 'boundary'. Got {place!r}.")
    # A frame that covers size² of the image leaves a square of 1 - size².
    square = size if place == "center" else math.sqrt(1 - size * size)
    inside = _central_square(images, side=square)
    covered = inside if place == "center" else ~inside
    black = torch.as_tensor(fill, dtype=images.dtype, device=images.device)
    return torch.where(covered, black, images)


def _central_square(images: Tensor, *, side: float) -> Tensor:
    """Returns an (H, W) mask of the central box with `side` times the image's sides."""
    height, width = images.shape[-2:]
    inside = torch.zeros(height, width, dtype=torch.bool, device=images.device)
    rows, columns = round(side * height), round(side * width)
    top, left = (height - rows) // 2, (width - columns) // 2
    inside[top : top + rows, left : left + columns] = True
    return inside
