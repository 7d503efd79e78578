"""Distances within a batch, and reductions over the pairs that a mask keeps."""

# B = batch, D = embedding dim, M = columns

import torch
from torch import Tensor

SQUARED_DISTANCE_FLOOR = 1e-12
"""Squared distances are raised to this before the root, whose slope at zero is infinite."""

# Finite, because minus infinity in an empty row would turn the gradient into nan.
_FAR_BELOW = -1e30


def unit_vectors(embeddings: Tensor) -> Tensor:
    """Returns the rows at length 1; a zero row stays zero and gets no gradient."""
    lengths = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
    return embeddings / torch.where(lengths > 0, lengths, torch.inf)


def dot_products(left: Tensor, right: Tensor) -> Tensor:
    """Returns the (B, M) dot products of the rows of (B, D) with those of (M, D)."""
    # Autocast would compute the product in half precision, too coarse for differences of it.
    with torch.autocast(left.device.type, enabled=False):
        return left @ right.T


def squared_distances(
    products: Tensor, row_squared_lengths: Tensor, column_squared_lengths: Tensor
) -> Tensor:
    """Returns squared Euclidean distances from dot products; the three shapes broadcast."""
    return row_squared_lengths + column_squared_lengths - 2 * products


def root_of_squared(squared: Tensor) -> Tensor:
    """Returns distances from squared ones, at least 1e-6, with a finite gradient everywhere."""
    return squared.clamp_min(SQUARED_DISTANCE_FLOOR).sqrt()


def distances_from_products(products: Tensor) -> Tensor:
    """Returns the (B, B) Euclidean distances of the points whose dot products are given."""
    # The lengths come from the same products, so a point's distance to itself is exactly zero.
    lengths = products.diagonal()
    return root_of_squared(squared_distances(products, lengths.unsqueeze(1), lengths))


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two (B, B) masks: pairs of one class without the diagonal, pairs of two classes."""
    same = labels.unsqueeze(1) == labels
    negatives = ~same
    return same.fill_diagonal_(False), negatives


def mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of the finite values that the mask keeps, as 0-dim; zero if none."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def log_sum_exp_where(values: Tensor, mask: Tensor) -> Tensor:
    """Returns log(sum(exp(values))) of each row's kept values: (B, M) to (B,).

    A row that keeps nothing gives a very negative finite number, whose exponential is zero.
    """
    return torch.logsumexp(values.masked_fill(~mask, _FAR_BELOW), dim=1)


def log_one_plus_exp(values: Tensor) -> Tensor:
    """Returns log(1 + exp(values)), exact in float64 and finite at any size."""
    # softplus switches to the identity at 20, an error of 2e-9.
    return torch.logaddexp(values, values.new_zeros(()))
