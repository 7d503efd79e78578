"""Contrastive loss."""

# B = batch

import torch
from torch import Tensor

from dml_core.config.losses import ContrastiveConfig
from dml_core.losses.base import MetricLoss, at_least_float32
from dml_core.losses.distances import (
    SQUARED_DISTANCE_FLOOR,
    distances_from_products,
    dot_products,
    mean_where,
    pair_masks,
    unit_vectors,
)


class ContrastiveLoss(MetricLoss):
    """Pulls pairs of one class together and pushes pairs of two classes apart.

    The mean of d - positive_margin over the pairs of one class that are farther than
    positive_margin, plus the mean of negative_margin - d over the pairs of two classes that are
    nearer than negative_margin; d is the distance on the unit sphere (Hadsell et al., 2006).
    A mean over no pair is zero, and coincident points of one class are no pair.
    """

    def __init__(self, config: ContrastiveConfig, *, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None = None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        unit = unit_vectors(at_least_float32(embeddings))
        distances = distances_from_products(dot_products(unit, unit))
        positives, negatives = pair_masks(labels)
        # The floor of the root is no distance: without this, duplicates would dilute the mean.
        smallest = max(self.config.positive_margin, SQUARED_DISTANCE_FLOOR**0.5)
        far_positives = positives & (distances > smallest)
        near_negatives = negatives & (distances < self.config.negative_margin)
        self._diagnose(distances.detach(), far_positives, near_negatives)
        pull = mean_where(distances - self.config.positive_margin, far_positives)
        return pull + mean_where(self.config.negative_margin - distances, near_negatives)

    @torch.no_grad()
    def _diagnose(self, distances: Tensor, positives: Tensor, negatives: Tensor) -> None:
        num_pairs = max(1, distances.numel() - len(distances))
        self.diagnostics = {
            "active_fraction": (positives.sum() + negatives.sum()) / num_pairs,
            "positive_distance": mean_where(distances, positives),
            "negative_distance": mean_where(distances, negatives),
        }
