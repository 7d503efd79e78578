"""What the loss learns from: classes, bins of a continuous label, or the label itself."""

from dataclasses import dataclass

import numpy as np

from dml_core.config.trial import TrialConfig
from dml_core.data.prepared import ImageSet


@dataclass(frozen=True)
class Targets:
    """The training images' labels, as the sampler and the loss want them."""

    classes: np.ndarray
    """(N,) int64, from 0 to num_classes - 1."""
    continuous: np.ndarray
    """(N, L) float32, scaled; L is 0 without continuous labels."""
    num_classes: int
    label_scale: np.ndarray
    """(L,) what each continuous column was divided by."""


def make_targets(images: ImageSet, config: TrialConfig) -> Targets:
    """Returns the targets of the training images.

    Raises:
        ValueError: when fewer than two classes are left to learn from.
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
    """Returns (L,) divisors: the standard deviations, or ones; a constant column keeps 1."""
    scale = np.ones(continuous.shape[1])
    if standardize and len(continuous):
        deviations = continuous.std(axis=0)
        scale[deviations > 0] = deviations[deviations > 0]
    return scale


def quantize(continuous: np.ndarray, *, bins: int) -> tuple[np.ndarray, int]:
    """Returns classes made of equally wide bins of each column, and how many are in use."""
    low, high = continuous.min(axis=0), continuous.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    cells = np.minimum((bins * (continuous - low) / width).astype(np.int64), bins - 1)
    _, classes = np.unique(cells, axis=0, return_inverse=True)
    return classes.reshape(-1).astype(np.int64), int(classes.max()) + 1
