"""The base class of samplers, and the shuffled sampler."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dml_core.config.arguments import read_arguments, takes_fields_of
from dml_core.config.training import SamplerBase, ShuffledSamplerConfig
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

    The constructor takes the fields of `config_class` as keyword arguments. A torch DataLoader
    takes the sampler as `batch_sampler`. Nothing that is drawn in one epoch depends on another, so
    a run that resumes at any epoch draws the same batches as an uninterrupted run.
    """

    config_class: ClassVar[type[SamplerBase]]
    """Names, defaults and ranges of the constructor's arguments."""

    config: SamplerBase
    """The arguments."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        takes_fields_of(cls.config_class)(cls)

    def __init__(self, *, seed: int = 0, **arguments: Any) -> None:
        found = read_arguments(type(self), self.config_class, given=arguments)
        self.config = found[self.config_class]
        self.seed = seed
        self.epoch = 0

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""

    @abstractmethod
    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        """Returns the indices of each batch of an epoch; the next call draws the next epoch."""
        epoch = self.epoch
        self.epoch += 1
        return (batch.indices.tolist() for batch in self.epoch_batches(epoch))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, to resume or repeat."""
        self.epoch = epoch

    def _check_batch_fits(self, num_images: int) -> None:
        if num_images < self.config.batch_size:
            raise ValueError(
                f"sampler.batch_size must be at most the number of training images. "
                f"Got {self.config.batch_size} and {num_images} images. Lower sampler.batch_size."
            )


class ShuffledSampler(BatchSampler):
    """Every image once per epoch, in random order; the last, incomplete batch is dropped."""

    config_class = ShuffledSamplerConfig

    def __init__(self, num_images: int, *, seed: int = 0, **arguments: Any) -> None:
        super().__init__(seed=seed, **arguments)
        self._check_batch_fits(num_images)
        self.num_images = num_images
        self.batch_size = self.config.batch_size

    def __len__(self) -> int:
        return self.num_images // self.batch_size

    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch."""
        order = numpy_stream(self.seed, "batches", epoch=epoch).permutation(self.num_images)
        for number in range(len(self)):
            yield Batch(order[number * self.batch_size : (number + 1) * self.batch_size])
