"""Chooses, in each packed image, the box that becomes the network's input."""

# B = batch; a box is (top, left, height, width) in packed pixels and may leave the image.

import numpy as np

from dml_core.config.augmentation import AugmentationConfig

# Tries before a random box of the wished area and aspect is given up for the central one.
_ATTEMPTS = 10


def evaluation_boxes(sizes: np.ndarray, *, size_px: int, config: AugmentationConfig) -> np.ndarray:
    """Returns the (B, 4) boxes of evaluation for images of (B, 2) heights and widths."""
    if config.evaluation_crop == "whole":
        return _whole_boxes(sizes)
    return _central_boxes(sizes, sides=_input_sides(sizes, size_px))


def training_boxes(
    sizes: np.ndarray, *, size_px: int, config: AugmentationConfig, stream: np.random.Generator
) -> np.ndarray:
    """Returns the (B, 4) boxes of a training batch, drawn from the stream."""
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
    """Square sides of the input's size, or of the image's shorter side where that is less."""
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
    """Boxes of random area and aspect; all attempts are drawn at once and the first fit taken."""
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
