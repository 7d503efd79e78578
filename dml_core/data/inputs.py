"""Makes the network's inputs and the loss's targets from prepared images."""

# B = batch, C = channels, L = continuous labels, N = images, S = input size
# A box is (top, left, height, width) in packed pixels and may extend beyond the image.

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dml_core.config.data import AugmentationConfig
from dml_core.config.trial import TrialConfig
from dml_core.data.parallel import prefetch
from dml_core.data.prepared import ImageSet

# Attempts to draw a box of the chosen area and aspect ratio before using the central box.
_ATTEMPTS = 10


def evaluation_boxes(sizes: np.ndarray, *, size_px: int, config: AugmentationConfig) -> np.ndarray:
    """Returns the (B, 4) evaluation boxes for images of (B, 2) heights and widths."""
    if config.evaluation_crop == "whole":
        return _whole_boxes(sizes)
    return _central_boxes(sizes, sides=_input_sides(sizes, size_px))


def training_boxes(
    sizes: np.ndarray, *, size_px: int, config: AugmentationConfig, stream: np.random.Generator
) -> np.ndarray:
    """Returns the (B, 4) boxes of a training batch, drawn from `stream`."""
    match config.crop:
        case "center":
            return evaluation_boxes(sizes, size_px=size_px, config=config)
        case "random_resized":
            return _random_resized_boxes(sizes, config=config, stream=stream)
        case "random":
            return _random_boxes(sizes, size_px=size_px, config=config, stream=stream)
        case "jitter":
            return _jittered_boxes(sizes, size_px=size_px, config=config, stream=stream)
        case "shift":
            boxes = _central_boxes(sizes, sides=_input_sides(sizes, size_px))
            boxes[:, :2] += stream.integers(
                -config.shift_px, config.shift_px, size=(len(sizes), 2), endpoint=True
            )
            return boxes


def _input_sides(sizes: np.ndarray, size_px: int) -> np.ndarray:
    """Returns (B, 2) square sides: the input size, or the image's shorter side if that is less."""
    shorter = np.minimum(size_px, sizes.min(axis=1))
    return np.stack([shorter, shorter], axis=1)


def _whole_boxes(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(sizes), sizes], axis=1)


def _central_boxes(sizes: np.ndarray, *, sides: np.ndarray) -> np.ndarray:
    return np.concatenate([(sizes - sides) // 2, sides], axis=1)


def _random_boxes(
    sizes: np.ndarray, *, size_px: int, config: AugmentationConfig, stream: np.random.Generator
) -> np.ndarray:
    sides = _input_sides(sizes, size_px)
    corners = stream.integers(0, sizes - sides, endpoint=True)
    boxes = np.concatenate([corners, sides], axis=1)
    plain = stream.random(len(sizes)) < config.plain_probability
    return np.where(plain[:, None], _whole_boxes(sizes), boxes)


def _jittered_boxes(
    sizes: np.ndarray, *, size_px: int, config: AugmentationConfig, stream: np.random.Generator
) -> np.ndarray:
    jitter, shift = config.size_jitter_px, config.shift_px
    sides = _input_sides(sizes, size_px)
    sides = sides + stream.integers(-jitter, jitter, size=sides.shape, endpoint=True)
    sides = np.clip(sides, 1, sizes)
    boxes = _central_boxes(sizes, sides=sides)
    boxes[:, :2] += stream.integers(-shift, shift, size=sides.shape, endpoint=True)
    boxes[:, :2] = np.clip(boxes[:, :2], 0, sizes - sides)
    return boxes


def _random_resized_boxes(
    sizes: np.ndarray, *, config: AugmentationConfig, stream: np.random.Generator
) -> np.ndarray:
    """Returns boxes of random area and aspect ratio; draws all attempts, uses the first fit."""
    count = len(sizes)
    areas = stream.uniform(config.min_area, 1.0, size=(_ATTEMPTS, count)) * sizes.prod(axis=1)
    bound = np.log(config.max_aspect)
    aspects = np.exp(stream.uniform(-bound, bound, size=(_ATTEMPTS, count)))
    places = stream.random(size=(count, 2))
    sides = np.rint(np.sqrt(np.stack([areas / aspects, areas * aspects], axis=2))).astype(np.int64)
    fits = ((sides >= 1) & (sides <= sizes)).all(axis=2)
    first = fits.argmax(axis=0)
    chosen = np.where(
        fits.any(axis=0)[:, None], sides[first, np.arange(count)], _input_sides(sizes, 2**31)
    )
    corners = np.floor(places * (sizes - chosen + 1)).astype(np.int64)
    return np.concatenate([corners, chosen], axis=1)


def cut_boxes(images: ImageSet, indices: np.ndarray, boxes: np.ndarray, *, size_px: int) -> Tensor:
    """Returns (B, C, S, S) uint8: the box of each image, resized to the input size.

    Pixels outside the image are black.
    """
    if images.shape is not None and bool((boxes[:, 2:] == size_px).all()):
        return _cut_equal(images.gather(indices), boxes, size_px=size_px)
    # Channels last, as images are packed and resized; converted once for the whole batch.
    shape = (len(indices), size_px, size_px, images.channels)
    batch = torch.empty(shape, dtype=torch.uint8).permute(0, 3, 1, 2)
    places = torch.split(batch, 1)
    # Python integers: indexing a numpy array takes longer than a small crop.
    for place, index, box in zip(places, indices.tolist(), boxes.tolist(), strict=True):
        _cut_into(place, images.image(index), box)
    return batch.contiguous()


def _cut_equal(chosen: np.ndarray, boxes: np.ndarray, *, size_px: int) -> Tensor:
    """Cuts input-sized boxes from (B, H, W, C) images in one indexing operation."""
    outside = _largest_overhang(boxes, chosen.shape[1:3])
    if outside:
        chosen = np.pad(chosen, ((0, 0), (outside, outside), (outside, outside), (0, 0)))
    steps = np.arange(size_px)
    rows = (boxes[:, 0, None] + outside + steps)[:, :, None]
    columns = (boxes[:, 1, None] + outside + steps)[:, None, :]
    cut = chosen[np.arange(len(chosen))[:, None, None], rows, columns]
    return torch.from_numpy(np.ascontiguousarray(cut.transpose(0, 3, 1, 2)))


def _largest_overhang(boxes: np.ndarray, size: tuple[int, ...]) -> int:
    """Returns the largest overhang of a box beyond its image, in pixels."""
    before = -boxes[:, :2].min()
    after = (boxes[:, :2] + boxes[:, 2:] - np.array(size)).max()
    return int(max(0, before, after))


def _cut_into(place: Tensor, image: np.ndarray, box: list[int]) -> None:
    """Writes a box of an image into its (1, C, S, S) place, resized if needed."""
    top, left, height, width = box
    if top < 0 or left < 0 or top + height > image.shape[0] or left + width > image.shape[1]:
        over = _largest_overhang(np.array([box]), image.shape[:2])
        image = np.pad(image, ((over, over), (over, over), (0, 0)))
        top, left = top + over, left + over
    # The memory map is read-only, and torch expects a writable array.
    cut = image[top : top + height, left : left + width].copy()
    tensor = torch.from_numpy(cut[None]).permute(0, 3, 1, 2)
    if tensor.shape == place.shape:
        place.copy_(tensor)
    else:
        _resize_into(place, tensor)


def _resize_into(place: Tensor, image: Tensor) -> None:
    """Resizes (1, C, H, W) in channels-last layout, bit-identical to torchvision."""
    size = list(place.shape[2:])
    if _resizes_bytes():
        # The function behind `interpolate`, which has no `out`: a copy would hold the GIL and
        # block the other loader threads.
        torch._C._nn._upsample_bilinear2d_aa(  # type: ignore[call-arg]
            image, size, False, None, None, out=place
        )
        return
    # Imported late: it loads all torchvision models, which takes seconds.
    from torchvision.transforms.v2 import functional as transforms

    place.copy_(transforms.resize(image, size, antialias=True))


@cache
def _resizes_bytes() -> bool:
    """Whether torch resizes uint8 directly on this CPU; otherwise torchvision converts to float."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def flip_images(batch: Tensor, chosen: Tensor) -> Tensor:
    """Flips the chosen images horizontally, in place; returns the batch."""
    # numpy copies in reverse several times as fast as torch flips and scatters.
    pixels = batch.numpy()
    for row in chosen.nonzero().squeeze(1).tolist():
        pixels[row] = pixels[row, ..., ::-1].copy()
    return batch


ALL = slice(None)
"""The whole batch."""


class Inputs(Protocol):
    """Network inputs by image index: pixels or cached activations."""

    def __len__(self) -> int:
        """Returns the number of images."""
        ...

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        """Returns training inputs of a part of the images, augmented with draws from `stream`.

        The draws are always those of all images, so the parts together equal the whole batch.
        """
        ...

    def plain(self, indices: np.ndarray) -> Tensor:
        """Returns evaluation inputs of the images."""
        ...


class ImageInputs:
    """Pixels as inputs: (B, C, S, S) uint8."""

    def __init__(self, images: ImageSet, *, size_px: int, config: AugmentationConfig) -> None:
        self.images = images
        self.size_px = size_px
        self.config = config

    def __len__(self) -> int:
        return len(self.images)

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        """Returns random boxes of a part of the images, flipped as configured."""
        boxes = training_boxes(
            self.images.sizes[indices], size_px=self.size_px, config=self.config, stream=stream
        )
        batch = cut_boxes(self.images, indices[part], boxes[part], size_px=self.size_px)
        if self.config.flip == "none":
            return batch
        draws = stream.random(len(indices) if self.config.flip == "image" else 1) < 0.5
        flips = np.broadcast_to(draws, len(indices))[part].copy()
        return flip_images(batch, torch.from_numpy(flips))

    def plain(self, indices: np.ndarray) -> Tensor:
        """Returns the evaluation boxes."""
        boxes = evaluation_boxes(
            self.images.sizes[indices], size_px=self.size_px, config=self.config
        )
        return cut_boxes(self.images, indices, boxes, size_px=self.size_px)


def plain_batches(
    inputs: Inputs, *, batch_size: int, workers: int = 0
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yields (indices, evaluation inputs) over all images, in order."""
    starts = range(0, len(inputs), batch_size)
    blocks = (np.arange(s, min(s + batch_size, len(inputs))) for s in starts)

    def make(indices: np.ndarray) -> tuple[np.ndarray, Tensor]:
        return indices, inputs.plain(indices)

    yield from prefetch(make, blocks, workers=workers)


@dataclass(frozen=True)
class Targets:
    """Labels of the training images, for the sampler and the loss."""

    classes: np.ndarray
    """(N,) int64, from 0 to num_classes - 1."""
    continuous: np.ndarray
    """(N, L) float32, scaled; L is 0 without continuous labels."""
    num_classes: int
    label_scale: np.ndarray
    """(L,) divisor of each continuous column."""


def make_targets(images: ImageSet, config: TrialConfig) -> Targets:
    """Returns the targets of the training images.

    Raises:
        ValueError: if there are fewer than two classes.
    """
    scale = compute_label_scale(images.continuous, standardize=config.data.standardize_labels)
    continuous = (images.continuous / scale).astype(np.float32)
    classes, count = images.labels, images.num_classes
    if config.data.quantize_bins:
        classes, count = quantize(continuous, bins=config.data.quantize_bins)
    if count < 2 and not config.uses_continuous_labels:
        raise ValueError(f"training needs at least 2 classes. Got {count}.")
    return Targets(classes=classes, continuous=continuous, num_classes=count, label_scale=scale)


def compute_label_scale(continuous: np.ndarray, *, standardize: bool) -> np.ndarray:
    """Returns (L,) divisors: standard deviations or ones; 1 for a constant column."""
    scale = np.ones(continuous.shape[1])
    if standardize and len(continuous):
        deviations = continuous.std(axis=0)
        scale[deviations > 0] = deviations[deviations > 0]
    return scale


def quantize(continuous: np.ndarray, *, bins: int) -> tuple[np.ndarray, int]:
    """Returns classes from bins of equal width of each column, and the number of classes."""
    low, high = continuous.min(axis=0), continuous.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    cells = np.minimum((bins * (continuous - low) / width).astype(np.int64), bins - 1)
    _, classes = np.unique(cells, axis=0, return_inverse=True)
    return classes.reshape(-1).astype(np.int64), int(classes.max()) + 1
