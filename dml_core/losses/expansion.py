"""Embedding Expansion (Ko and Gu, 2020): the hardest negatives, synthetic points included."""

# B = batch, P = pairs, N = synthetic points of a pair, K = classes of the batch
# M = B + P * N: all points, the originals first, then the synthetics pair by pair

from typing import NamedTuple

import torch
from torch import Tensor

from dml_core.config.losses import ExpansionConfig
from dml_core.losses.distances import mean_where, root_of_squared, squared_distances
from dml_core.losses.pairing import Pairs, pair_of_each_sample, pairs_in_batch_order
from dml_core.losses.synthetic_points import (
    Mixture,
    mix_points,
    pick,
    products_between,
    products_of_all,
)


class HardestNegatives(NamedTuple):
    """The hardest pair of each anchor with each class of the batch."""

    values: Tensor
    """(B, K) distances, or similarities, with gradient."""
    mask: Tensor
    """(B, K) false at the anchor's own class."""
    anchor_points: Tensor
    """(B, K) the end on the anchor's side: a batch position, or B plus a synthetic's number."""
    class_points: Tensor
    """(B, K) the end in the other class, numbered alike."""
    distances: Tensor
    """(B, K) distances of the pairs, without gradient."""
    class_index: Tensor
    """(B,) the column of each anchor's own class."""
    classes: Tensor
    """(K,) the label of each column, ascending."""

    @torch.no_grad()
    def diagnostics(self) -> dict[str, Tensor]:
        """Returns the share of pairs with a synthetic end and the (K, K) hardest distances.

        The diagonal of `hardest_distances` is zero; `hardest_classes` names its rows and columns.
        """
        batch_size, num_classes = self.mask.shape
        synthetic = (self.anchor_points >= batch_size) | (self.class_points >= batch_size)
        by_class = _smallest_by_class(self.distances, self.class_index, num_classes=num_classes)
        return {
            "synthetic_fraction": mean_where(synthetic.float(), self.mask),
            "hardest_distances": by_class.fill_diagonal_(0),
            "hardest_classes": self.classes,
        }


def hardest_class_negatives(
    products: Tensor, labels: Tensor, config: ExpansionConfig, *, by_similarity: bool = False
) -> HardestNegatives:
    """Finds the hardest pair of each anchor with each other class, synthetics included.

    The anchor's side is the anchor and the synthetics of its own pair; the class's side is all of
    its originals and synthetics. Pairs are found without gradient, and their values then have it.

    Args:
        products: (B, B) dot products of the embeddings, with gradient.
        labels: (B,) class indices.
        config: the number of points, at least 1, and whether they are normalised.
        by_similarity: the greatest dot product is hardest, instead of the smallest distance.
    """
    pairs = pairs_in_batch_order(labels)
    mixture = mix_points(products, pairs, points=config.points, normalize=config.normalize)
    classes, class_index = torch.unique(labels, return_inverse=True)
    with torch.no_grad():
        costs = _costs(products, mixture, by_similarity=by_similarity)
        point_class = class_index[mixture.ends[0]]
        sides = _anchor_sides(pairs, batch_size=len(labels), points=config.points)
        ends = _hardest_ends(costs, point_class, sides, num_classes=len(classes))
    similarities = products_between(products, mixture, *ends)
    left, right = (pick(mixture.squared_lengths, end) for end in ends)
    distances = root_of_squared(squared_distances(similarities, left, right))
    values = similarities if by_similarity else distances
    mask = class_index.unsqueeze(1) != torch.arange(len(classes), device=labels.device)
    return HardestNegatives(values, mask, *ends, distances.detach(), class_index, classes)


def _costs(products: Tensor, mixture: Mixture, *, by_similarity: bool) -> Tensor:
    """Returns an (M, M) number for each two points that is lower for harder pairs."""
    similarities = products_of_all(products, mixture)
    lengths = mixture.squared_lengths
    # In place, since this is the largest tensor of the loss and nothing else reads it.
    if by_similarity:
        return similarities.neg_()
    return similarities.mul_(-2).add_(lengths).add_(lengths.unsqueeze(1))


def _anchor_sides(pairs: Pairs, *, batch_size: int, points: int) -> Tensor:
    """Returns the (B, 1 + N) points that stand for each anchor: itself, its pair's synthetics."""
    itself = torch.arange(batch_size, device=pairs.first.device).unsqueeze(1)
    owner = pair_of_each_sample(pairs, batch_size=batch_size).unsqueeze(1)
    step = torch.arange(points, device=owner.device)
    # A sample without a pair is listed again and again instead.
    synthetics = torch.where(owner >= 0, batch_size + owner * points + step, itself)
    return torch.cat([itself, synthetics], dim=1)


def _hardest_ends(
    costs: Tensor, point_class: Tensor, sides: Tensor, *, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Returns the (B, K) ends of the hardest pair: on the anchor's side, and in the class."""
    best = _smallest_by_class(costs, point_class, num_classes=num_classes)
    # Numbers are exact in float32 up to 16 million, and reduce far faster than integers.
    number = torch.arange(len(costs), dtype=torch.float32, device=costs.device).unsqueeze(1)
    is_best = costs == best.index_select(0, point_class)
    number_if_best = torch.where(is_best, number, torch.inf)
    best_point = _smallest_by_class(number_if_best, point_class, num_classes=num_classes).long()
    choice = best[:, sides].argmin(dim=2)
    anchor_point = sides.gather(1, choice.T)
    return anchor_point, best_point.gather(1, anchor_point.T).T


def _smallest_by_class(values: Tensor, class_index: Tensor, *, num_classes: int) -> Tensor:
    """Returns the smallest value of each class in each column: (R, M) and (R,) to (K, M)."""
    smallest = values.new_full((num_classes, values.shape[1]), torch.inf)
    rows = class_index.unsqueeze(1).expand_as(values)
    return smallest.scatter_reduce_(0, rows, values, "amin")
