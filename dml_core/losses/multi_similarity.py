"""Multi-similarity loss."""

# B = batch, M = negatives of an anchor (batch and memory, or one per class with expansion)

import torch
from torch import Tensor

from dml_core.config.losses import MultiSimilarityConfig
from dml_core.losses.distances import log_one_plus_exp, log_sum_exp_where, mean_where
from dml_core.losses.expansion import hardest_class_negatives
from dml_core.losses.memory import MemoryLoss


class MultiSimilarityLoss(MemoryLoss):
    """Weights each pair by its own cosine and those of other pairs (Wang et al., 2019).

    L = mean over anchors of (1/alpha) log(1 + sum exp(-alpha (s - base))) over positives plus
    (1/beta) log(1 + sum exp(beta (s - base))) over negatives. With mining_epsilon, only positives
    below the most similar negative plus epsilon participate, and only negatives above the least
    similar positive minus epsilon. An anchor without pairs adds zero. With expansion, the negatives
    are the hardest pairs with each other class. With memory, positives and negatives also come from
    there; anchors do not.
    """

    config_class = MultiSimilarityConfig
    config: MultiSimilarityConfig

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of (B, D) embeddings and (B,) labels."""
        self.diagnostics = {}
        found = self.compare(embeddings, labels)
        positive_cosines = negative_cosines = found.cosines
        positives, negatives = found.positives, found.negatives
        if self.config.expansion.points:
            hardest = hardest_class_negatives(
                positive_cosines, labels, self.config.expansion, by_similarity=True
            )
            self.diagnostics.update(hardest.diagnostics())
            negative_cosines, negatives = hardest.values, hardest.mask
        num_pairs = positives.sum() + negatives.sum()
        if self.config.mining_epsilon is not None:
            positives, negatives = _mine(
                positive_cosines.detach(),
                positives,
                negative_cosines.detach(),
                negatives,
                epsilon=self.config.mining_epsilon,
            )
        self.diagnostics |= {
            "active_fraction": (positives.sum() + negatives.sum()) / num_pairs.clamp_min(1),
            "positive_distance": mean_where(_distances(positive_cosines), positives),
            "negative_distance": mean_where(_distances(negative_cosines), negatives),
        }
        pull = self._side(positive_cosines, positives, sharpness=-self.config.alpha)
        return (pull + self._side(negative_cosines, negatives, sharpness=self.config.beta)).mean()

    def _side(self, cosines: Tensor, mask: Tensor, *, sharpness: float) -> Tensor:
        """Returns the (B,) cost of each anchor for one kind of pair."""
        exponents = log_sum_exp_where(sharpness * (cosines - self.config.base), mask)
        return log_one_plus_exp(exponents) / abs(sharpness)


def _mine(
    positive_cosines: Tensor,
    positives: Tensor,
    negative_cosines: Tensor,
    negatives: Tensor,
    *,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Returns both masks without pairs that are easier than the hardest of the other kind."""
    # If an anchor has only one kind of pair, the hardest of the other is infinite and keeps none.
    hardest_negative = negative_cosines.masked_fill(~negatives, -torch.inf).amax(dim=1)
    hardest_positive = positive_cosines.masked_fill(~positives, torch.inf).amin(dim=1)
    kept_positives = positives & (positive_cosines - epsilon < hardest_negative.unsqueeze(1))
    kept_negatives = negatives & (negative_cosines + epsilon > hardest_positive.unsqueeze(1))
    return kept_positives, kept_negatives


def _distances(cosines: Tensor) -> Tensor:
    return (2 - 2 * cosines.detach()).clamp_min(0).sqrt()
