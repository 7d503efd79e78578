"""Contrastive loss."""

# B = batch, C = batch and memory

import torch
from torch import Tensor

from dml_core.config.losses import ContrastiveConfig
from dml_core.losses.distances import SQUARED_DISTANCE_FLOOR, mean_where
from dml_core.losses.memory import MemoryLoss


class ContrastiveLoss(MemoryLoss):
    """Pulls pairs of the same class together and pushes other pairs apart (Hadsell et al., 2006).

    L = mean of d - positive_margin over pairs of the same class with d > positive_margin, plus the
    mean of negative_margin - d over pairs of different classes with d < negative_margin, where d is
    the distance on the unit sphere. A mean over no pairs is zero. Coincident points of one class
    do not count as a pair. Pairs within the batch count once for each of their images, those with
    the memory once.
    """

    config_class = ContrastiveConfig
    config: ContrastiveConfig

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        pairs = self.compare(embeddings, labels)
        distances, positives, negatives = pairs.distances(), pairs.positives, pairs.negatives
        # The floor of the root is not a distance: otherwise duplicates would dilute the mean.
        smallest = max(self.config.positive_margin, SQUARED_DISTANCE_FLOOR**0.5)
        far_positives = positives & (distances > smallest)
        near_negatives = negatives & (distances < self.config.negative_margin)
        num_far, num_near = far_positives.sum(), near_negatives.sum()
        with torch.no_grad():
            self._diagnose(distances, far_positives, near_negatives)
            # Both means are linear in the distances, so one weighted sum computes both.
            weights = far_positives.to(distances.dtype) / num_far.clamp_min(1)
            weights -= near_negatives.to(distances.dtype) / num_near.clamp_min(1)
            pushed = self.config.negative_margin * (num_near > 0).to(distances.dtype)
            pulled = self.config.positive_margin * (num_far > 0).to(distances.dtype)
        loss: Tensor = (weights * distances).sum() + pushed - pulled
        return loss

    def _diagnose(self, distances: Tensor, positives: Tensor, negatives: Tensor) -> None:
        num_pairs = max(1, distances.numel() - len(distances))
        self.diagnostics = {
            "active_fraction": (positives.sum() + negatives.sum()) / num_pairs,
            "positive_distance": mean_where(distances, positives),
            "negative_distance": mean_where(distances, negatives),
        }
