"""Lifted structure loss."""

# B = batch, C = batch and memory
# M = negatives of an anchor (C, or one per class with expansion)

import torch
from torch import Tensor

from dml_core.config.losses import LiftedStructureConfig
from dml_core.losses.distances import log_sum_exp_where, mean_where
from dml_core.losses.expansion import hardest_class_negatives
from dml_core.losses.memory import MemoryLoss


class LiftedStructureLoss(MemoryLoss):
    """Compares each positive pair with all negatives of both its images (Song et al., 2016).

    L = mean over ordered pairs (i, j) of the same class of
    max(0, log(sum_n exp(margin - d_in) + sum_n exp(margin - d_jn)) + d_ij)^2 / 2, where d is the
    distance on the unit sphere and n runs over the images of other classes. A pair without
    negatives adds zero; a batch without pairs gives zero. With expansion, n runs over the hardest
    pairs with each other class. With memory, j and n also come from there, but no pair has both
    ends there: if j is in the memory, the n of d_jn are in the batch.
    """

    config_class = LiftedStructureConfig
    config: LiftedStructureConfig

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        self.diagnostics = {}
        pairs = self.compare(embeddings, labels)
        positives, negatives = pairs.positives, pairs.negatives
        distances = negative_distances = pairs.distances()
        if self.config.expansion.points:
            hardest = hardest_class_negatives(pairs.cosines, labels, self.config.expansion)
            self.diagnostics.update(hardest.diagnostics())
            negative_distances, negatives = hardest.values, hardest.mask
        push = log_sum_exp_where(self.config.margin - negative_distances, negatives)
        push_of_other = push
        if pairs.squared_lengths is not None:
            of_memory = self.config.margin - distances[:, len(labels) :].T
            in_batch = log_sum_exp_where(of_memory, negatives[:, len(labels) :].T)
            push_of_other = torch.cat([push, in_batch])
        costs = (torch.logaddexp(push.unsqueeze(1), push_of_other) + distances).relu()
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
