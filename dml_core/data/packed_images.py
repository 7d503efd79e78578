"""Gives access to packed images through a memory map, without reading them whole."""

# N = images, H = height, W = width, C = channels

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Images of a memory-mapped file, in any order and selection."""

    file: Path
    buffer: np.ndarray
    """The file's bytes, mapped read-only and shared by all selections."""
    offsets: np.ndarray
    """(N,) int64, where each image begins."""
    sizes: np.ndarray
    """(N, 2) int64, height and width of each image."""
    channels: int

    def __len__(self) -> int:
        return len(self.offsets)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the file itself; the pixels never travel.
        return map_images, (self.file, self.offsets, self.sizes, self.channels)

    @cached_property
    def shape(self) -> tuple[int, int, int] | None:
        """(H, W, C) that all images have, or None when their sizes differ or there are none."""
        if len(self) == 0 or bool((self.sizes != self.sizes[0]).any()):
            return None
        return int(self.sizes[0, 0]), int(self.sizes[0, 1]), self.channels

    def image(self, index: int) -> np.ndarray:
        """Returns an image as a read-only (H, W, C) uint8 view of the file."""
        height, width = (int(side) for side in self.sizes[index])
        start = int(self.offsets[index])
        pixels = self.buffer[start : start + height * width * self.channels]
        return pixels.reshape(height, width, self.channels)

    def select(self, indices: np.ndarray) -> "PackedImages":
        """Returns a selection that shares the memory map."""
        sizes = self.sizes[indices]
        return PackedImages(self.file, self.buffer, self.offsets[indices], sizes, self.channels)

    @cached_property
    def stack(self) -> np.ndarray | None:
        """All images as a read-only (N, H, W, C) view, or None where there cannot be one.

        There is one when all images have one size and lie at even distances in the file, as in
        a whole part, and in runs of it. A selection with gaps has none: see `gather`.
        """
        shape = self.shape
        if shape is None:
            return None
        steps = np.diff(self.offsets)
        step = int(steps[0]) if len(steps) else int(np.prod(shape))
        if step <= 0 or bool((steps != step).any()):
            return None
        first = self.image(0)
        strides = (step, *first.strides)
        return np.lib.stride_tricks.as_strided(first, (len(self), *shape), strides, writeable=False)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Returns (B, H, W, C) as a copy of some images, which must have one size."""
        assert self.shape is not None, "gather needs images of one size"
        if self._grid is not None:
            every, rows = self._grid
            return np.asarray(every[rows[indices]])
        batch = np.empty((len(indices), *self.shape), dtype=np.uint8)
        for row, index in enumerate(indices):
            batch[row] = self.image(int(index))
        return batch

    @cached_property
    def _grid(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The whole file as (M, H, W, C) and each image's row, where all of it has one size."""
        if self.shape is None:
            return None
        num_bytes = int(np.prod(self.shape))
        if len(self.buffer) % num_bytes or bool((self.offsets % num_bytes).any()):
            return None
        return self.buffer.reshape(-1, *self.shape), self.offsets // num_bytes


def map_images(file: Path, offsets: np.ndarray, sizes: np.ndarray, channels: int) -> PackedImages:
    """Maps a file of packed images into memory; an empty file has no images."""
    is_empty = file.stat().st_size == 0
    # A plain array over the map: slicing a np.memmap is several times slower.
    mapped = np.empty(0, np.uint8) if is_empty else np.asarray(np.memmap(file, np.uint8, mode="r"))
    return PackedImages(file, mapped, offsets, sizes, channels)
