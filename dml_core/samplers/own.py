"""Samplers of the project folder, by the name `python:my_package.my_module:MySampler`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dml_core.config.problems import ConfigError, suggest
from dml_core.config.training import OwnSamplerConfig
from dml_core.own_code import OwnCodeError, call_with_options, load_object
from dml_core.samplers.batch import Batch, BatchSampler


class OwnSampler(BatchSampler):
    """A sampler of the project folder: a class with `__len__()` and `epoch_batches(epoch)`.

    The constructor gets `sampler.options` as keyword arguments, and of labels, continuous,
    batch_size and seed those that it takes. `epoch_batches` yields the positions of the training
    images of each batch, as whole numbers; what it draws must depend on the seed and the epoch
    alone, so that a resumed trial draws the same.
    """

    config_class = OwnSamplerConfig
    config: OwnSamplerConfig

    def __init__(
        self, labels: np.ndarray, continuous: np.ndarray, *, seed: int = 0, **arguments: Any
    ) -> None:
        super().__init__(seed=seed, **arguments)
        self._check_batch_fits(len(labels))
        self.num_images = len(labels)
        given = {"labels": labels, "continuous": continuous, "seed": seed}
        try:
            self.own = call_with_options(
                load_object(self.config.name),
                name=self.config.name,
                options=self.config.options,
                given={**given, "batch_size": self.config.batch_size},
                key="sampler.options",
                suggest=suggest,
            )
        except OwnCodeError as error:
            raise ConfigError("sampler", str(error).splitlines()) from error
        for method in ("__len__", "epoch_batches"):
            if not hasattr(self.own, method):
                problem = f"sampler.name={self.config.name} must have the method {method}."
                raise ConfigError("sampler", [problem])

    def __len__(self) -> int:
        return len(self.own)

    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch.

        Raises:
            ValueError: when a batch holds no positions of training images.
        """
        for drawn in self.own.epoch_batches(epoch):
            indices = np.asarray(drawn)
            is_whole = indices.ndim == 1 and np.issubdtype(indices.dtype, np.integer)
            if not (is_whole and indices.size and _are_below(indices, self.num_images)):
                raise ValueError(
                    f"{self.config.name} must yield positions of training images, whole numbers "
                    f"from 0 to {self.num_images - 1}, for each batch. Got {str(drawn)[:80]}."
                )
            yield Batch(indices.astype(np.int64))


def _are_below(indices: np.ndarray, bound: int) -> bool:
    return bool(indices.min() >= 0 and indices.max() < bound)
