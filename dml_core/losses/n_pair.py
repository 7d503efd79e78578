"""N-pair loss."""

# B = batch, P = classes with a pair, M = negatives of an anchor (P, or all classes with expansion)

import torch
from torch import Tensor

from dml_core.config.losses import NPairConfig
from dml_core.losses.base import MetricLoss, at_least_float32, zero_loss
from dml_core.losses.distances import (
    dot_products,
    log_one_plus_exp,
    log_sum_exp_where,
    mean_where,
    unit_vectors,
)
from dml_core.losses.expansion import hardest_class_negatives
from dml_core.losses.pairing import pairs_in_batch_order


class NPairLoss(MetricLoss):
    """Tells each anchor's positive from the positives of all other classes (Sohn, 2016).

    The first two samples of a class in batch order are its anchor and its positive. With
    s_ij = scale * (anchor_i . positive_j), the mean over classes of
    log(1 + sum_{j != i} exp(s_ij - s_ii)), plus l2_weight times the mean squared length of all
    embeddings as they came. A class with one sample gives no pair; a batch without pairs is zero.
    With expansion, the sum runs over the hardest pairs with all other classes of the batch.
    """

    def __init__(self, config: NPairConfig, *, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None = None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        self.diagnostics = {}
        batch = at_least_float32(embeddings)
        pairs = pairs_in_batch_order(labels)
        is_first_of_class = pairs.rank == 0
        first, second = pairs.first[is_first_of_class], pairs.second[is_first_of_class]
        if len(first) == 0:
            return zero_loss(embeddings)
        if self.config.expansion.points:
            costs = self._expanded_costs(batch, labels, first, second)
        else:
            costs = self._plain_costs(batch[first], batch[second])
        loss = costs.mean()
        if self.config.l2_weight:
            loss = loss + self.config.l2_weight * batch.square().sum(dim=1).mean()
        return loss

    def _plain_costs(self, anchors: Tensor, positives: Tensor) -> Tensor:
        if self.config.normalize:
            anchors, positives = unit_vectors(anchors), unit_vectors(positives)
        similarities = dot_products(anchors, positives)
        others = ~torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
        return self._costs(similarities.diagonal(), similarities, others)

    def _expanded_costs(
        self, batch: Tensor, labels: Tensor, first: Tensor, second: Tensor
    ) -> Tensor:
        vectors = unit_vectors(batch) if self.config.normalize else batch
        products = dot_products(vectors, vectors)
        hardest = hardest_class_negatives(
            products, labels, self.config.expansion, by_similarity=True
        )
        self.diagnostics.update(hardest.diagnostics())
        return self._costs(products[first, second], hardest.values[first], hardest.mask[first])

    def _costs(self, positives: Tensor, negatives: Tensor, mask: Tensor) -> Tensor:
        """Returns the (P,) costs of (P,) positive and (P, M) kept negative similarities."""
        push = log_sum_exp_where(self.config.scale * negatives, mask)
        with torch.no_grad():
            self.diagnostics |= {
                "positive_similarity": positives.mean(),
                "negative_similarity": mean_where(negatives, mask),
            }
        return log_one_plus_exp(push - self.config.scale * positives)
