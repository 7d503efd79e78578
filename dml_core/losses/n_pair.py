"""N-pair loss."""

# B = batch

import torch
import torch.nn.functional as F
from torch import Tensor

from dml_core.config.losses import NPairConfig
from dml_core.losses.base import MetricLoss, at_least_float32, zero_loss
from dml_core.losses.distances import (
    dot_products,
    log_one_plus_exp,
    log_sum_exp_where,
    mean_where,
    self_products,
    unit_vectors,
)
from dml_core.losses.expansion import Pairs, first_pairs_in_batch_order, hardest_class_negatives


class NPairLoss(MetricLoss):
    """Separates each anchor's positive from the positives of all other classes (Sohn, 2016).

    The first two samples of a class in batch order are its anchor and its positive. With
    s_ij = scale * (anchor_i . positive_j), L = mean over classes of
    log(1 + sum_{j != i} exp(s_ij - s_ii)), plus l2_weight times the mean squared norm of the
    embeddings before normalization. A class with one sample gives no pair; a batch without pairs
    gives zero. With expansion, the sum runs over the hardest pairs with all other classes.
    """

    config_class = NPairConfig
    config: NPairConfig

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        self.diagnostics = {}
        batch = at_least_float32(embeddings)
        pairs = first_pairs_in_batch_order(labels)
        if len(pairs.first) == 0:
            return zero_loss(embeddings)
        if self.config.expansion.points:
            loss = self._expanded(batch, labels, pairs)
        else:
            loss = self._plain(batch, pairs)
        if self.config.l2_weight:
            loss = loss + self.config.l2_weight * batch.square().sum(dim=1).mean()
        return loss

    def _plain(self, batch: Tensor, pairs: Pairs) -> Tensor:
        vectors = batch.index_select(0, torch.cat(pairs))
        if self.config.normalize:
            vectors = unit_vectors(vectors)
        num_pairs = len(pairs.first)
        similarities = dot_products(vectors[:num_pairs], vectors[num_pairs:])
        with torch.no_grad():
            others = similarities.sum() - similarities.trace()
            self.diagnostics |= {
                "positive_similarity": similarities.diagonal().mean(),
                "negative_similarity": others / max(1, num_pairs * (num_pairs - 1)),
            }
        # log(1 + sum_{j != i} exp(s_ij - s_ii)) is the cross entropy of row i with class i.
        targets = torch.arange(num_pairs, device=batch.device)
        return F.cross_entropy(self.config.scale * similarities, targets)

    def _expanded(self, batch: Tensor, labels: Tensor, pairs: Pairs) -> Tensor:
        products = self_products(unit_vectors(batch) if self.config.normalize else batch)
        hardest = hardest_class_negatives(
            products, labels, self.config.expansion, by_similarity=True
        )
        positives = products[pairs.first, pairs.second]
        negatives, mask = hardest.values[pairs.first], hardest.mask[pairs.first]
        self.diagnostics |= hardest.diagnostics() | {
            "positive_similarity": positives.detach().mean(),
            "negative_similarity": mean_where(negatives.detach(), mask),
        }
        push = log_sum_exp_where(self.config.scale * negatives, mask)
        return log_one_plus_exp(push - self.config.scale * positives).mean()
