"""Samplers: which images form a batch; a torch DataLoader takes them as `batch_sampler`."""

import numpy as np

from dml_core.config.training import (
    ClassBalancedSamplerConfig,
    DenseSamplerConfig,
    OwnSamplerConfig,
    SamplerConfig,
)
from dml_core.samplers.batch import Batch, BatchSampler, ShuffledSampler
from dml_core.samplers.class_balanced import ClassBalancedSampler
from dml_core.samplers.dense import DenseSampler
from dml_core.samplers.own import OwnSampler

__all__ = [
    "Batch",
    "BatchSampler",
    "ClassBalancedSampler",
    "DenseSampler",
    "OwnSampler",
    "ShuffledSampler",
    "build_sampler",
]


def build_sampler(
    config: SamplerConfig, *, labels: np.ndarray, continuous: np.ndarray, seed: int
) -> BatchSampler:
    """Returns the configured sampler.

    Args:
        config: the sampler's settings.
        labels: (N,) int64 class of each training image.
        continuous: (N, L) continuous labels; L may be 0 unless the sampler is dense.
        seed: the trial's seed.
    """
    arguments = {"seed": seed, **dict(config)}
    if isinstance(config, ClassBalancedSamplerConfig):
        return ClassBalancedSampler(labels, **arguments)
    if isinstance(config, DenseSamplerConfig):
        return DenseSampler(continuous, **arguments)
    if isinstance(config, OwnSamplerConfig):
        return OwnSampler(labels, continuous, **arguments)
    return ShuffledSampler(len(labels), **arguments)
