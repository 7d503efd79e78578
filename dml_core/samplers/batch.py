"""The base class of samplers, and the shuffled sampler."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dml_core.seeding import numpy_stream


@dataclass(frozen=True)
class Batch:
    """Indices of a batch's images in the training set."""

    indices: np.ndarray
    """(B,) int64; a class-balanced sampler keeps the images of a class together."""
    anchors: np.ndarray | None = None
    """(A,) int64 positions of the anchors within the batch, from the dense sampler."""


class BatchSampler(ABC):
    """Draws the batches of an epoch from the stream (seed, "batches", epoch).

    No state passes from one epoch to the next, so a run that resumes at any epoch draws
    the same batches as an uninterrupted run.
    """

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""

    @abstractmethod
    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch."""


class ShuffledSampler(BatchSampler):
    """Every image once per epoch, in random order; the last, incomplete batch is dropped."""

    def __init__(self, *, num_images: int, batch_size: int, seed: int) -> None:
        super().__init__(seed=seed)
        if num_images < batch_size:
            raise ValueError(
                f"sampler.batch_size must be at most the number of training images. "
                f"Got {batch_size} and {num_images} images. Lower sampler.batch_size."
            )
        self.num_images = num_images
        self.batch_size = batch_size

    def __len__(self) -> int:
        return self.num_images // self.batch_size

    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch."""
        order = numpy_stream(self.seed, "batches", epoch=epoch).permutation(self.num_images)
        for number in range(len(self)):
            yield Batch(order[number * self.batch_size : (number + 1) * self.batch_size])
