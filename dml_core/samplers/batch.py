"""What a sampler is, and the simplest one: every image once an epoch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dml_core.seeding import numpy_stream


@dataclass(frozen=True)
class Batch:
    """Positions of a batch's images in the training set."""

    indices: np.ndarray
    """(B,) int64; images of one class stand together where the sampler balances classes."""
    anchors: np.ndarray | None = None
    """(A,) int64 positions within the batch of its anchors, from the dense sampler."""


class BatchSampler(ABC):
    """Draws the batches of an epoch from the stream (seed, "batches", epoch).

    Nothing is carried from one epoch to the next, so a run that resumes at any epoch, or at any
    batch of it, sees the batches that an unbroken run sees.
    """

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""

    @abstractmethod
    def _draw_epoch(self, epoch: int) -> Iterator[Batch]:
        """Yields all batches of an epoch."""

    def epoch_batches(self, epoch: int, *, first_batch: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch, from `first_batch` on."""
        for number, batch in enumerate(self._draw_epoch(epoch)):
            if number >= first_batch:
                yield batch


class ShuffledSampler(BatchSampler):
    """Cuts a random order of all images into batches; the last, shorter one is dropped."""

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

    def _draw_epoch(self, epoch: int) -> Iterator[Batch]:
        order = numpy_stream(self.seed, "batches", epoch=epoch).permutation(self.num_images)
        for number in range(len(self)):
            yield Batch(order[number * self.batch_size : (number + 1) * self.batch_size])
