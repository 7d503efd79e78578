"""Points between the two embeddings of a pair, and their dot products.

A synthetic point is a weighted sum of two embeddings, so its dot product with any other point is
a weighted sum of the originals' dot products. Only `synthesize` works in D dimensions.
"""

# B = batch, D = embedding dim, P = pairs, N = synthetic points of a pair
# M = B + P * N: all points, the originals first, then the synthetics pair by pair

from typing import NamedTuple

import torch
from torch import Tensor

from dml_core.losses.pairing import Pairs, pairs_in_batch_order

_SHORTEST = 1e-6
"""Squared length, relative to the two ends, under which a point has no direction."""


class SyntheticPoints(NamedTuple):
    """The points between the two embeddings of each pair."""

    vectors: Tensor
    """(P * N, D), pair by pair, from the earlier end to the later one."""
    labels: Tensor
    """(P * N,) the class of the pair."""
    pairs: Tensor
    """(P * N,) the number of the pair, as in pairs_in_batch_order."""


class Mixture(NamedTuple):
    """All points as weighted sums of two originals; an original is itself with weight 1."""

    ends: Tensor
    """(2, M) batch positions."""
    weights: Tensor
    """(2, M)."""
    squared_lengths: Tensor
    """(M,)."""


def synthesize(
    embeddings: Tensor, labels: Tensor, *, points: int, normalize: bool
) -> SyntheticPoints:
    """Returns `points` synthetic embeddings between the two of each pair of a class.

    Point k of N is (k * later + (N + 1 - k) * earlier) / (N + 1). Normalised, it has length 1,
    but between opposite ends, where it has no direction, it is the origin.

    Args:
        embeddings: (B, D).
        labels: (B,) class indices.
        points: N, at least 1.
        normalize: whether to put the points on the unit sphere.
    """
    pairs = pairs_in_batch_order(labels)
    later, earlier = _step_weights(embeddings, points)
    first, second = embeddings[pairs.first].unsqueeze(1), embeddings[pairs.second].unsqueeze(1)
    vectors = earlier.unsqueeze(1) * first + later.unsqueeze(1) * second
    if normalize:
        ends = (first.square().sum(dim=-1) + second.square().sum(dim=-1)) / 2
        vectors = vectors * _unit_scale(vectors.square().sum(dim=-1), ends).unsqueeze(-1)
    numbers = torch.arange(len(pairs.first), device=labels.device).repeat_interleave(points)
    return SyntheticPoints(vectors.flatten(0, 1), labels[pairs.first[numbers]], numbers)


def mix_points(products: Tensor, pairs: Pairs, *, points: int, normalize: bool) -> Mixture:
    """Returns the originals and their synthetic points as weighted sums of two originals.

    Args:
        products: (B, B) dot products of the embeddings; the weights carry their gradient.
        pairs: the pairs to put points between.
        points: N, at least 1.
        normalize: whether to put the points on the unit sphere.
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
    # index_select copies whole rows, several times faster than indexing.
    mixed = rows.index_select(0, first).mul_(earlier)
    return mixed.addcmul_(rows.index_select(0, second), later)


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Returns the entries of a vector at an index of any shape."""
    # The gradient of gather is a scatter_add, far faster on a CPU than that of indexing.
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
    """Returns the factor that brings a point to length 1, or 0 where it has no direction."""
    has_direction = squared_lengths > _SHORTEST * end_squared_lengths
    return torch.where(has_direction, squared_lengths, torch.inf).rsqrt()
