"""What every sampler gives: the same batches for the same seed and epoch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


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
