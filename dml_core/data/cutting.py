"""Cuts boxes out of packed images and brings them to the network's input size."""

# B = batch, C = channels, S = input size

import numpy as np
import torch
from torch import Tensor

from dml_core.data.prepared import ImageSet


def cut_boxes(images: ImageSet, indices: np.ndarray, boxes: np.ndarray, *, size_px: int) -> Tensor:
    """Returns (B, C, S, S) uint8: each image's box, resized where it has another size.

    What lies outside of an image is black.
    """
    if images.shape is not None and bool((boxes[:, 2:] == size_px).all()):
        return _cut_equal(images.gather(indices), boxes, size_px=size_px)
    rows = [
        _cut_one(images.image(int(index)), box, size_px=size_px)
        for index, box in zip(indices, boxes, strict=True)
    ]
    return torch.stack(rows)


def _cut_equal(chosen: np.ndarray, boxes: np.ndarray, *, size_px: int) -> Tensor:
    """Cuts boxes of the input's size out of (B, H, W, C) images, all in one indexing."""
    outside = _largest_overhang(boxes, chosen.shape[1:3])
    if outside:
        chosen = np.pad(chosen, ((0, 0), (outside, outside), (outside, outside), (0, 0)))
    steps = np.arange(size_px)
    rows = (boxes[:, 0, None] + outside + steps)[:, :, None]
    columns = (boxes[:, 1, None] + outside + steps)[:, None, :]
    cut = chosen[np.arange(len(chosen))[:, None, None], rows, columns]
    return torch.from_numpy(np.ascontiguousarray(cut.transpose(0, 3, 1, 2)))


def _largest_overhang(boxes: np.ndarray, size: tuple[int, ...]) -> int:
    """How far the farthest box reaches over an edge of its image."""
    before = -boxes[:, :2].min()
    after = (boxes[:, :2] + boxes[:, 2:] - np.array(size)).max()
    return int(max(0, before, after))


def _cut_one(image: np.ndarray, box: np.ndarray, *, size_px: int) -> Tensor:
    top, left, height, width = (int(value) for value in box)
    over = _largest_overhang(box[None], image.shape[:2])
    if over:
        image = np.pad(image, ((over, over), (over, over), (0, 0)))
    cut = image[top + over : top + over + height, left + over : left + over + width]
    # The memory map is read-only, and torch wants an array that it could write to.
    tensor = torch.from_numpy(cut.copy()).permute(2, 0, 1)
    if (height, width) == (size_px, size_px):
        return tensor.contiguous()
    return _resize(tensor, size_px=size_px).contiguous()


def _resize(image: Tensor, *, size_px: int) -> Tensor:
    # Late: it brings all of torchvision's models, seconds that images of the right size do without.
    from torchvision.transforms.v2 import functional as transforms

    resized: Tensor = transforms.resize(image[None], [size_px, size_px], antialias=True)[0]
    return resized


def flip_images(batch: Tensor, chosen: Tensor) -> Tensor:
    """Returns the batch with the chosen images mirrored left and right."""
    return torch.where(chosen[:, None, None, None], batch.flip(-1), batch)
