"""Lifted structure loss."""

# B = batch, M = negatives of an anchor (B, or one per class with expansion)

import torch
from torch import Tensor

from dml_core.config.losses import LiftedStructureConfig
from dml_core.losses.base import MetricLoss, at_least_float32
from dml_core.losses.distances import (
    log_sum_exp_where,
    mean_where,
    pair_masks,
    self_products,
    sphere_distances,
    unit_vectors,
)
from dml_core.losses.expansion import hardest_class_negatives


class LiftedStructureLoss(MetricLoss):
    """Compares each positive pair with all negatives of both its images (Song et al., 2016).

    L = mean over ordered pairs (i, j) of the same class of
    max(0, log(sum_n exp(margin - d_in) + sum_n exp(margin - d_jn)) + d_ij)^2 / 2, where d is the
    distance on the unit sphere and n runs over the images of other classes. A pair without
    negatives adds zero; a batch without pairs gives zero. With expansion, n runs over the hardest
    pairs with each other class.
    """

    config_class = LiftedStructureConfig
    config: LiftedStructureConfig

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        self.diagnostics = {}
        unit = unit_vectors(at_least_float32(embeddings))
        products = self_products(unit)
        distances = sphere_distances(products)
        positives, negatives = pair_masks(labels)
        negative_distances = distances
        if self.config.expansion.points:
            hardest = hardest_class_negatives(products, labels, self.config.expansion)
            self.diagnostics.update(hardest.diagnostics())
            negative_distances, negatives = hardest.values, hardest.mask
        push = log_sum_exp_where(self.config.margin - negative_distances, negatives)
        costs = (torch.logaddexp(push.unsqueeze(1), push) + distances).relu()
        self._diagnose(costs, distances, positives, negative_distances, negatives)
        return mean_where(costs.square() / 2, positives)

    @torch.no_grad()
    def _diagnose(
        self,
        costs: Tensor,
        distances: Tensor,
        positives: Tensor,
        negative_distances: Tensor,
        negatives: Tensor,
    ) -> None:
        self.diagnostics |= {
            "active_fraction": mean_where((costs > 0).float(), positives),
            "positive_distance": mean_where(distances, positives),
            "negative_distance": mean_where(negative_distances, negatives),
        }
