"""Covers a part of each image, to see how far an embedding leans on it."""

# B = batch, C = channels, H = height, W = width

import math
from typing import Literal

import torch
from torch import Tensor

Place = Literal["center", "boundary"]


def occlude(images: Tensor, *, size: float, place: Place, fill: float | Tensor = 0.0) -> Tensor:
    """Returns a copy of the images in which a part is covered.

    `center` covers a central square with `size` times the image's sides. `boundary` covers a
    frame along the border with the same area, `size` squared of the image, and leaves a central
    square open: the two hide equally many pixels (to the nearest whole row and column), so that
    their curves compare.

    Args:
        images: (B, C, H, W), or any (..., H, W).
        size: side of the square as a share of the image's side, from 0 (nothing is covered) to 1
            (all is).
        place: which part is covered.
        fill: what it is covered with: the value of black. After a normalisation by channel that
            is (0 - mean) / std, as a tensor of shape (C, 1, 1).
    """
    if not 0 <= size <= 1:
        raise ValueError(
            f"evaluation.occlusion must hold shares of the image's side from 0 to 1. Got {size}."
        )
    if place not in ("center", "boundary"):
        raise ValueError(f"occlude: place must be 'center' or 'boundary'. Got {place!r}.")
    # The open square of a frame that covers size² of the image covers the other 1 - size².
    square = size if place == "center" else math.sqrt(1 - size * size)
    inside = _central_square(images, side=square)
    covered = inside if place == "center" else ~inside
    black = torch.as_tensor(fill, dtype=images.dtype, device=images.device)
    return torch.where(covered, black, images)


def _central_square(images: Tensor, *, side: float) -> Tensor:
    """(H, W) True inside the central box with `side` times the image's sides."""
    height, width = images.shape[-2:]
    inside = torch.zeros(height, width, dtype=torch.bool, device=images.device)
    rows, columns = round(side * height), round(side * width)
    top, left = (height - rows) // 2, (width - columns) // 2
    inside[top : top + rows, left : left + columns] = True
    return inside
