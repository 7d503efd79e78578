"""Embedding Expansion (Ko and Gu, 2020): synthetic points and the hardest negatives."""

# B = batch, K = classes of the batch, P = pairs, N = synthetic points of a pair
# M = B + P * N: all points, the originals first, then the synthetic points pair by pair

from typing import NamedTuple

import torch
from torch import Tensor

from dml_core.config.losses import ExpansionConfig
from dml_core.losses.distances import mean_where, root_of_squared, squared_distances


class Pairs(NamedTuple):
    """Disjoint pairs of the same class, sorted by class and batch order."""

    first: Tensor
    """(P,) batch positions of the earlier samples."""
    second: Tensor
    """(P,) batch positions of the later samples."""


def pairs_in_batch_order(labels: Tensor) -> Pairs:
    """Pairs each class's first sample with its second, its third with its fourth, and so on.

    The last sample of a class with an odd count has no pair.

    Args:
        labels: (B,) class indices.

    Example:
        Labels 7, 3, 7, 7, 3 give the pairs (1, 4) of class 3 and (0, 2) of class 7.
    """
    ordered, order = labels.sort(stable=True)
    place = torch.arange(len(labels), device=labels.device)
    same_as_next = ordered[1:] == ordered[:-1]
    # A class starts where the label differs from the previous one; cummax propagates the start.
    starts = place.clone()
    starts[1:] = torch.where(same_as_next, 0, place[1:])
    rank_in_class = place - starts.cummax(dim=0).values
    head = (same_as_next & (rank_in_class[:-1] % 2 == 0)).nonzero().squeeze(1)
    return Pairs(order[head], order[head + 1])


def first_pairs_in_batch_order(labels: Tensor) -> Pairs:
    """Pairs each class's first sample with its second; the others have no pair."""
    ordered, order = labels.sort(stable=True)
    starts_pair = ordered[1:] == ordered[:-1]
    starts_pair[1:] &= ordered[1:-1] != ordered[:-2]
    head = starts_pair.nonzero().squeeze(1)
    return Pairs(order[head], order[head + 1])


def pair_of_each_sample(pairs: Pairs, *, batch_size: int) -> Tensor:
    """Returns the (B,) number of each sample's pair, or -1 without a pair."""
    numbers = torch.arange(len(pairs.first), device=pairs.first.device)
    owner = numbers.new_full((batch_size,), -1)
    owner[pairs.first] = numbers
    owner[pairs.second] = numbers
    return owner


_SHORTEST = 1e-6
"""Squared length, relative to both ends, below which a point has no direction."""


class Mixture(NamedTuple):
    """All points as weighted sums of two originals; an original has weight 1 on itself."""

    ends: Tensor
    """(2, M) batch positions."""
    weights: Tensor
    """(2, M)."""
    squared_lengths: Tensor
    """(M,)."""


def mix_points(products: Tensor, pairs: Pairs, *, points: int, normalize: bool) -> Mixture:
    """Returns the originals and their synthetic points as weighted sums of two originals.

    Point k of N is (k * later + (N + 1 - k) * earlier) / (N + 1). Normalized, it has length 1,
    except between opposite ends, where it has no direction and is the origin.

    Args:
        products: (B, B) dot products of the embeddings; the weights carry their gradient.
        pairs: the pairs that get points.
        points: N, at least 1.
        normalize: whether the points are on the unit sphere.
    """
    lengths = products.diagonal()
    later, earlier = _step_weights(products, points)
    first, second = lengths[pairs.first].unsqueeze(1), lengths[pairs.second].unsqueeze(1)
    across = products[pairs.first, pairs.second].unsqueeze(1)
    squared = earlier**2 * first + later**2 * second + 2 * earlier * later * across
    scale = _unit_scale(squared, (first + second) / 2) if normalize else torch.ones_like(squared)
    original = torch.arange(len(products), device=products.device)
    ends = torch.stack([pairs.first, pairs.second]).repeat_interleave(points, dim=1)
    weights = torch.stack([(earlier * scale).flatten(), (later * scale).flatten()])
    of_originals = torch.stack([torch.ones_like(lengths), torch.zeros_like(lengths)])
    return Mixture(
        ends=torch.cat([original.expand(2, -1), ends], dim=1),
        weights=torch.cat([of_originals, weights], dim=1),
        squared_lengths=torch.cat([lengths, (squared * scale**2).flatten()]),
    )


@torch.no_grad()
def products_of_all(products: Tensor, mixture: Mixture) -> Tensor:
    """Returns the (M, M) dot products of all points, without gradient."""
    batch_size, num_points = len(products), mixture.ends.shape[1]
    first, second = mixture.ends[:, batch_size:]
    earlier, later = mixture.weights[:, batch_size:].unsqueeze(2)
    everything = products.new_empty(num_points, num_points)
    everything[:batch_size, :batch_size] = products
    of_synthetics = _mix_rows(products, first, second, earlier, later)
    everything[:batch_size, batch_size:] = of_synthetics.T
    everything[batch_size:] = _mix_rows(everything, first, second, earlier, later)
    return everything


def _mix_rows(
    rows: Tensor, first: Tensor, second: Tensor, earlier: Tensor, later: Tensor
) -> Tensor:
    # index_select copies whole rows and is several times faster than indexing.
    mixed = rows.index_select(0, first).mul_(earlier)
    return mixed.addcmul_(rows.index_select(0, second), later)


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Returns the entries of a vector at an index of any shape."""
    # The backward of gather is a scatter_add, far faster on a CPU than that of indexing.
    return values.gather(0, index.flatten()).view_as(index)


def products_between(products: Tensor, mixture: Mixture, left: Tensor, right: Tensor) -> Tensor:
    """Returns the (B, K) dot products of pairs of points, with gradient."""
    total = torch.zeros((), dtype=products.dtype, device=products.device)
    flat = products.flatten()
    for left_end, left_weight in zip(mixture.ends, mixture.weights, strict=True):
        for right_end, right_weight in zip(mixture.ends, mixture.weights, strict=True):
            product = pick(flat, left_end[left] * len(products) + right_end[right])
            total = total + pick(left_weight, left) * pick(right_weight, right) * product
    return total


def _step_weights(like: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Returns the (N,) weights of the later and of the earlier end."""
    later = torch.arange(1, points + 1, dtype=like.dtype, device=like.device) / (points + 1)
    return later, 1 - later


def _unit_scale(squared_lengths: Tensor, end_squared_lengths: Tensor) -> Tensor:
    """Returns the factor that scales a point to length 1, or 0 without a direction."""
    has_direction = squared_lengths > _SHORTEST * end_squared_lengths
    return torch.where(has_direction, squared_lengths, torch.inf).rsqrt()


class HardestNegatives(NamedTuple):
    """The hardest pair of each anchor with each class of the batch."""

    values: Tensor
    """(B, K) distances, or similarities, with gradient."""
    mask: Tensor
    """(B, K) false for the anchor's class."""
    anchor_points: Tensor
    """(B, K) the anchor's end: a batch position, or B plus the number of a synthetic point."""
    class_points: Tensor
    """(B, K) the end in the other class, numbered the same way."""
    distances: Tensor
    """(B, K) distances of the pairs, without gradient."""
    class_index: Tensor
    """(B,) the column of each anchor's class."""
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
    """Finds the hardest pair of each anchor with each other class, including synthetic points.

    The anchor's side is the anchor and the synthetic points of its pair; the other side is all
    originals and synthetic points of the class. Pairs are found without gradient; their values
    have one.

    Args:
        products: (B, B) dot products of the embeddings, with gradient.
        labels: (B,) class indices.
        config: the number of points, at least 1, and whether they are normalized.
        by_similarity: the hardest pair has the largest dot product, not the smallest distance.
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
    """Returns the (M, M) costs of all pairs of points; harder pairs have lower costs."""
    similarities = products_of_all(products, mixture)
    lengths = mixture.squared_lengths
    # In place, because this is the largest tensor of the loss and nothing else reads it.
    if by_similarity:
        return similarities.neg_()
    return similarities.mul_(-2).add_(lengths).add_(lengths.unsqueeze(1))


def _anchor_sides(pairs: Pairs, *, batch_size: int, points: int) -> Tensor:
    """Returns the (B, 1 + N) points of each anchor: itself and its pair's synthetic points."""
    itself = torch.arange(batch_size, device=pairs.first.device).unsqueeze(1)
    owner = pair_of_each_sample(pairs, batch_size=batch_size).unsqueeze(1)
    step = torch.arange(points, device=owner.device)
    # A sample without a pair is repeated instead.
    synthetics = torch.where(owner >= 0, batch_size + owner * points + step, itself)
    return torch.cat([itself, synthetics], dim=1)


def _hardest_ends(
    costs: Tensor, point_class: Tensor, sides: Tensor, *, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Returns the (B, K) ends of the hardest pair: on the anchor's side, and in the class."""
    best = _smallest_by_class(costs, point_class, num_classes=num_classes)
    # Indices are exact in float32 up to 16 million, and reduce far faster than integers.
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
