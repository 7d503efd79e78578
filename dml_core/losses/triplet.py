"""Triplet loss."""

# B = batch, C = batch and memory, P = most positives of an anchor
# M = negatives of an anchor (C, or one per class with expansion)

from typing import NamedTuple

import torch
from torch import Tensor

from dml_core.config.losses import TripletConfig
from dml_core.losses.distances import mean_where
from dml_core.losses.expansion import hardest_class_negatives
from dml_core.losses.memory import MemoryLoss


class _Pairs(NamedTuple):
    """Distances and masks: (B, C) for positive pairs, (B, M) for negative pairs."""

    positive_distances: Tensor
    positives: Tensor
    negative_distances: Tensor
    negatives: Tensor


class TripletLoss(MemoryLoss):
    """Pushes each negative farther than each positive by a margin (Schroff et al., 2015).

    L = mean of max(0, d_ap - d_an + margin), with distances on the unit sphere, over the triplets
    that `mining` keeps. `all`: those above zero. `semi_hard`: those with
    d_ap < d_an < d_ap + margin. `hard`: the farthest positive and nearest negative of each anchor
    that has both, zeros included. Zero if no triplet is kept. With expansion, the negatives of an
    anchor are the hardest pairs with each other class. With memory, positives and negatives also
    come from there; anchors do not.
    """

    config_class = TripletConfig
    config: TripletConfig

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        self.diagnostics = {}
        found = self.compare(embeddings, labels)
        distances = found.distances()
        pairs = _Pairs(distances, found.positives, distances, found.negatives)
        if self.config.expansion.points:
            hardest = hardest_class_negatives(found.cosines, labels, self.config.expansion)
            self.diagnostics.update(hardest.diagnostics())
            pairs = _Pairs(distances, found.positives, hardest.values, hardest.mask)
        return self._hardest(pairs) if self.config.mining == "hard" else self._counted(pairs)

    def _hardest(self, pairs: _Pairs) -> Tensor:
        farthest = pairs.positive_distances.masked_fill(~pairs.positives, -torch.inf).amax(dim=1)
        nearest = pairs.negative_distances.masked_fill(~pairs.negatives, torch.inf).amin(dim=1)
        # An anchor without one of the two has minus infinity here, and its hinge is zero.
        hinges = (farthest - nearest + self.config.margin).relu()
        valid = pairs.positives.any(dim=1) & pairs.negatives.any(dim=1)
        self.diagnostics |= {
            "active_fraction": mean_where((hinges > 0).float(), valid),
            "positive_distance": mean_where(farthest.detach().masked_fill(~valid, 0), valid),
            "negative_distance": mean_where(nearest.detach().masked_fill(~valid, 0), valid),
        }
        return hinges.sum() / valid.sum().clamp_min(1)

    def _counted(self, pairs: _Pairs) -> Tensor:
        # Given the active hinges, their sum is linear in the distances: each distance counts as
        # often as it occurs. Counting needs no (B, B, M) tensor.
        with torch.no_grad():
            order = _rising_positives(pairs)
            with_positive, with_negative = self._count_active(pairs, order)
            num_active = with_positive.sum()
            num_all = (pairs.positives.sum(dim=1) * pairs.negatives.sum(dim=1)).sum()
        num_kept = num_active.clamp_min(1)
        near = (with_positive * pairs.positive_distances.gather(1, order)).sum() / num_kept
        far = (with_negative * pairs.negative_distances).sum() / num_kept
        self.diagnostics |= {
            "active_fraction": num_active / num_all.clamp_min(1),
            "positive_distance": near.detach(),
            "negative_distance": far.detach(),
        }
        return near - far + self.config.margin * (num_active > 0).to(near.dtype)

    def _count_active(self, pairs: _Pairs, order: Tensor) -> tuple[Tensor, Tensor]:
        """Counts the kept triplets of each listed positive, (B, P), and each negative, (B, M)."""
        lower = pairs.positive_distances.gather(1, order)
        lower = lower.masked_fill(~pairs.positives.gather(1, order), -torch.inf)
        upper = lower + self.config.margin
        if self.config.mining == "all":
            return _count_below(upper, pairs)
        # If the margin is lost in rounding, no negative may fit into it.
        upper = upper.maximum(lower.nextafter(torch.full_like(lower, torch.inf)))
        with_positive, with_negative = _count_below(upper, pairs)
        too_hard_positive, too_hard_negative = _count_below(lower, pairs, or_equal=True)
        return with_positive - too_hard_positive, with_negative - too_hard_negative


def _rising_positives(pairs: _Pairs) -> Tensor:
    """Returns the (B, P) columns of each anchor's positives, nearest first, after any others."""
    num_listed = max(1, int(pairs.positives.sum(dim=1).max()))
    listed = pairs.positive_distances.masked_fill(~pairs.positives, -torch.inf)
    return listed.topk(num_listed, dim=1).indices.flip(1)


def _count_below(
    thresholds: Tensor, pairs: _Pairs, *, or_equal: bool = False
) -> tuple[Tensor, Tensor]:
    """Counts, in each row, the pairs of an ascending threshold and a negative below it.

    Returns:
        The count of each threshold, (B, P), and of each negative, (B, M).
    """
    num_thresholds = thresholds.shape[1]
    place = torch.searchsorted(thresholds, pairs.negative_distances, right=not or_equal)
    of_negative = (num_thresholds - place) * pairs.negatives
    # A negative at position q is below all thresholds from q on.
    histogram = place.new_zeros(len(place), num_thresholds + 1)
    histogram.scatter_add_(1, place, pairs.negatives.long())
    return histogram.cumsum(dim=1)[:, :-1], of_negative
