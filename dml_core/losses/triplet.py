"""Triplet loss."""

# B = batch, M = negatives of an anchor (B, or one a class with expansion)

from typing import NamedTuple

import torch
from torch import Tensor

from dml_core.config.losses import TripletConfig
from dml_core.losses.base import MetricLoss, at_least_float32
from dml_core.losses.distances import (
    distances_from_products,
    dot_products,
    mean_where,
    pair_masks,
    unit_vectors,
)
from dml_core.losses.expansion import hardest_class_negatives


class _Pairs(NamedTuple):
    """Distances and masks: (B, B) for pairs of one class, (B, M) for pairs of two."""

    positive_distances: Tensor
    positives: Tensor
    negative_distances: Tensor
    negatives: Tensor


class TripletLoss(MetricLoss):
    """Wants each negative farther than each positive by a margin (Schroff et al., 2015).

    The mean of max(0, d_ap - d_an + margin), with distances on the unit sphere, over the triplets
    that `mining` keeps. `all`: those above zero. `semi_hard`: those with
    d_ap < d_an < d_ap + margin. `hard`: the farthest positive and the nearest negative of each
    anchor that has both, zeros included. Zero when no triplet is kept. With expansion, an anchor's
    negatives are the hardest pairs with the other classes, one each.
    """

    def __init__(self, config: TripletConfig, *, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None = None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        self.diagnostics = {}
        unit = unit_vectors(at_least_float32(embeddings))
        products = dot_products(unit, unit)
        distances = distances_from_products(products)
        positives, negatives = pair_masks(labels)
        pairs = _Pairs(distances, positives, distances, negatives)
        if self.config.expansion.points:
            hardest = hardest_class_negatives(products, labels, self.config.expansion)
            self.diagnostics.update(hardest.diagnostics())
            pairs = _Pairs(distances, positives, hardest.values, hardest.mask)
        return self._hardest(pairs) if self.config.mining == "hard" else self._counted(pairs)

    def _hardest(self, pairs: _Pairs) -> Tensor:
        farthest = pairs.positive_distances.masked_fill(~pairs.positives, -torch.inf).amax(dim=1)
        nearest = pairs.negative_distances.masked_fill(~pairs.negatives, torch.inf).amin(dim=1)
        # An anchor without one of the two has minus infinity here, which the hinge makes zero.
        hinges = (farthest - nearest + self.config.margin).relu()
        valid = pairs.positives.any(dim=1) & pairs.negatives.any(dim=1)
        self.diagnostics |= {
            "active_fraction": mean_where((hinges > 0).float(), valid),
            "positive_distance": mean_where(farthest.detach().masked_fill(~valid, 0), valid),
            "negative_distance": mean_where(nearest.detach().masked_fill(~valid, 0), valid),
        }
        return hinges.sum() / valid.sum().clamp_min(1)

    def _counted(self, pairs: _Pairs) -> Tensor:
        # The sum of hinges is linear in the distances once it is known which hinges are active:
        # each distance counts as often as it takes part. Counting needs no (B, B, M) tensor.
        upper = pairs.positive_distances + self.config.margin
        with torch.no_grad():
            with_positive, with_negative = _count_active(
                upper, pairs, semi_hard=self.config.mining == "semi_hard"
            )
            num_active = with_positive.sum()
            num_kept = num_active.clamp_min(1)
            num_all = (pairs.positives.sum(dim=1) * pairs.negatives.sum(dim=1)).sum()
        positive_mean = (with_positive * upper).sum() / num_kept
        negative_mean = (with_negative * pairs.negative_distances).sum() / num_kept
        any_active = num_active.clamp_max(1)
        self.diagnostics |= {
            "active_fraction": num_active / num_all.clamp_min(1),
            "positive_distance": positive_mean.detach() - self.config.margin * any_active,
            "negative_distance": negative_mean.detach(),
        }
        return positive_mean - negative_mean


def _count_active(upper: Tensor, pairs: _Pairs, *, semi_hard: bool) -> tuple[Tensor, Tensor]:
    """Counts each positive's and each negative's triplets: (B, B) and (B, M) integers."""
    positives, lower = pairs.positives, pairs.positive_distances
    if semi_hard:
        # A margin lost in rounding leaves no room for a negative.
        positives = positives & (upper > lower)
    negative_values = pairs.negative_distances.masked_fill(~pairs.negatives, torch.inf)
    nearest_first = negative_values.sort(dim=1).values
    with_positive = torch.searchsorted(nearest_first, upper)
    with_negative = _count_above(upper.masked_fill(~positives, -torch.inf), negative_values)
    if semi_hard:
        with_positive = with_positive - torch.searchsorted(nearest_first, lower, right=True)
        below = lower.masked_fill(~positives, -torch.inf)
        with_negative = with_negative - _count_above(below, negative_values, or_equal=True)
    return with_positive * positives, with_negative * pairs.negatives


def _count_above(thresholds: Tensor, values: Tensor, *, or_equal: bool = False) -> Tensor:
    """Counts, row by row, the thresholds above each value."""
    rising = thresholds.sort(dim=1).values
    return thresholds.shape[1] - torch.searchsorted(rising, values, right=not or_equal)
