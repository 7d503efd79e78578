"""Log-ratio loss."""

# A = anchors, B = batch

from typing import NamedTuple

import torch
from torch import Tensor

from dml_core.config.losses import LogRatioConfig
from dml_core.losses.base import MetricLoss, at_least_float32
from dml_core.losses.distances import LabelDistances, exact_distances, label_distances

_SMALLEST_DISTANCE = 1e-6
"""Lower bound of embedding distances before the logarithm."""


class _Ties(NamedTuple):
    """Items grouped by equal label distance to an anchor."""

    group: Tensor
    """(A, B) group of each item."""
    group_size: Tensor
    """(A, B) number of valid items in each item's group."""
    num_valid: Tensor
    """(A, 1) number of valid items."""


class LogRatioLoss(MetricLoss):
    """Fits ratios of embedding distances to ratios of label distances (Kim et al., 2019).

    L = mean of (log(Df_ai / Df_aj) - log(Dy_ai / Dy_aj))^2 over all triplets of an anchor a and
    two others with 0 < Dy_ai < Dy_aj; Df and Dy are squared Euclidean distances of the embeddings,
    without normalization, and of the labels. Pairs with equal labels are excluded and counted.
    Zero without triplets. Coincident embeddings give a finite loss and get no gradient from their
    mutual distance, which has no direction.
    """

    uses_continuous_labels = True

    config_class = LogRatioConfig
    config: LogRatioConfig

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B, L) labels."""
        batch = at_least_float32(embeddings)
        seen = label_distances(labels, anchors, choice=self.config.anchors)
        self.diagnostics = {"left_out_pairs": seen.left_out_pairs}
        distances = exact_distances(batch[seen.anchors], batch)
        label_logs = seen.distances.masked_fill(~seen.valid, 1).log().to(batch.dtype)
        # Twice the log of a distance is the log of the squared distance.
        ratios = 2 * (distances.clamp_min(_SMALLEST_DISTANCE).log() - label_logs) * seen.valid
        ties = _group_ties(seen)
        others = (ties.num_valid - ties.group_size) * seen.valid
        # Every triplet is counted from both of its items.
        num_triplets = others.sum() / 2
        return _sum_of_squared_differences(ratios, ties, seen.valid) / num_triplets.clamp_min(1)


def _group_ties(seen: LabelDistances) -> _Ties:
    counts = torch.zeros_like(seen.ranks).scatter_add_(1, seen.ranks, seen.valid.long())
    return _Ties(seen.ranks, counts.gather(1, seen.ranks), seen.valid.sum(dim=1, keepdim=True))


def _sum_of_squared_differences(ratios: Tensor, ties: _Ties, valid: Tensor) -> Tensor:
    """Returns the sum of (r_i - r_j)^2 over the pairs of different groups of each anchor.

    With n items of mean m and groups of size n_g with mean m_g, it equals the sum over items of
    (n - n_g) (r_i - m_g)^2 + n (m_g - m)^2. All terms are non-negative, so nothing cancels.
    """
    sums = torch.zeros_like(ratios).scatter_add(1, ties.group, ratios)
    group_mean = sums.gather(1, ties.group) / ties.group_size.clamp_min(1)
    mean = ratios.sum(dim=1, keepdim=True) / ties.num_valid.clamp_min(1)
    within = (ties.num_valid - ties.group_size) * (ratios - group_mean).square()
    between = ties.num_valid * (group_mean - mean).square()
    return ((within + between) * valid).sum()
