"""Makes the network's inputs from images: augmented for training, plain for evaluation."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dml_core.config.augmentation import AugmentationConfig
from dml_core.data.boxes import evaluation_boxes, training_boxes
from dml_core.data.cutting import cut_boxes, flip_images
from dml_core.data.prefetching import prefetch
from dml_core.data.prepared import ImageSet

ALL = slice(None)
"""The part of a batch that is the whole."""


class Inputs(Protocol):
    """A source of inputs by image index: pixels, or what a frozen trunk makes of them."""

    def __len__(self) -> int:
        """Returns the number of images."""
        ...

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        """Returns training inputs of a part of the images, drawn from the stream.

        The draws are those of all images, so that the parts of a batch are those of the whole.
        """
        ...

    def plain(self, indices: np.ndarray) -> Tensor:
        """Returns evaluation inputs of the images."""
        ...


class ImageInputs:
    """Inputs as (B, C, S, S) uint8 pixels."""

    def __init__(self, images: ImageSet, *, size_px: int, config: AugmentationConfig) -> None:
        self.images = images
        self.size_px = size_px
        self.config = config

    def __len__(self) -> int:
        return len(self.images)

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        """Returns random boxes of a part of the images, flipped as the configuration says."""
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
