"""Cuts boxes out of packed images and brings them to the network's input size."""

# B = batch, C = channels, S = input size

from functools import cache

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
    # Channels innermost, as images are packed and resized, and put apart for all images at once.
    shape = (len(indices), size_px, size_px, images.channels)
    batch = torch.empty(shape, dtype=torch.uint8).permute(0, 3, 1, 2)
    places = torch.split(batch, 1)
    # Plain numbers: looking at one number of an array takes longer than a small crop.
    for place, index, box in zip(places, indices.tolist(), boxes.tolist(), strict=True):
        _cut_into(place, images.image(index), box)
    return batch.contiguous()


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


def _cut_into(place: Tensor, image: np.ndarray, box: list[int]) -> None:
    """Writes a box of an image, resized where that is needed, into its (1, C, S, S) place."""
    top, left, height, width = box
    if top < 0 or left < 0 or top + height > image.shape[0] or left + width > image.shape[1]:
        over = _largest_overhang(np.array([box]), image.shape[:2])
        image = np.pad(image, ((over, over), (over, over), (0, 0)))
        top, left = top + over, left + over
    # The memory map is read-only, and torch wants an array that it could write to.
    cut = image[top : top + height, left : left + width].copy()
    tensor = torch.from_numpy(cut[None]).permute(0, 3, 1, 2)
    if tensor.shape == place.shape:
        place.copy_(tensor)
    else:
        _resize_into(place, tensor)


def _resize_into(place: Tensor, image: Tensor) -> None:
    """Resizes (1, C, H, W) with the channels innermost, to the bit as torchvision does."""
    size = list(place.shape[2:])
    if _resizes_bytes():
        # What `interpolate` calls, which cannot be given a place: the copy would hold the
        # interpreter's lock, for which the other threads of the loader wait.
        torch._C._nn._upsample_bilinear2d_aa(  # type: ignore[call-arg]
            image, size, False, None, None, out=place
        )
        return
    # Late: it brings all of torchvision's models, seconds that other machines do without.
    from torchvision.transforms.v2 import functional as transforms

    place.copy_(transforms.resize(image, size, antialias=True))


@cache
def _resizes_bytes() -> bool:
    """Whether torch resizes uint8 as it is here; elsewhere torchvision goes by way of floats."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def flip_images(batch: Tensor, chosen: Tensor) -> Tensor:
    """Mirrors the chosen images left and right, in place; returns the batch."""
    # NumPy copies backwards several times as fast as torch mirrors and puts rows back.
    pixels = batch.numpy()
    for row in chosen.nonzero().squeeze(1).tolist():
        pixels[row] = pixels[row, ..., ::-1].copy()
    return batch
