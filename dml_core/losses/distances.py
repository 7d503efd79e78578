"""Distances within a batch, of embeddings and of continuous labels."""

# A = anchors, B = batch, C = batch and memory, D = embedding dim, L = label columns, M = columns

from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SQUARED_DISTANCE_FLOOR = 1e-12
"""Lower bound of squared distances before the root, which has an infinite slope at zero."""

# Finite, because minus infinity in an empty row would give a nan gradient.
_FAR_BELOW = -1e30


def unit_vectors(embeddings: Tensor) -> Tensor:
    """Returns the rows scaled to length 1; a zero row stays zero and gets no gradient."""
    return cast(Tensor, _UnitVectors.apply(embeddings))


def dot_products(left: Tensor, right: Tensor) -> Tensor:
    """Returns the (B, M) dot products of the rows of (B, D) with those of (M, D)."""
    # Autocast would compute products in half precision, too coarse for their differences.
    with torch.autocast(left.device.type, enabled=False):
        return left @ right.T


def self_products(vectors: Tensor) -> Tensor:
    """Returns the (B, B) dot products of the rows of (B, D) with each other."""
    return cast(Tensor, _SelfProducts.apply(vectors))


def squared_distances(
    products: Tensor, row_squared_lengths: Tensor, column_squared_lengths: Tensor
) -> Tensor:
    """Returns squared Euclidean distances from dot products; the three shapes broadcast."""
    return row_squared_lengths + column_squared_lengths - 2 * products


def root_of_squared(squared: Tensor) -> Tensor:
    """Returns distances of at least 1e-6 from squared ones, with a finite gradient."""
    return squared.clamp_min(SQUARED_DISTANCE_FLOOR).sqrt()


def sphere_distances(cosines: Tensor, further_squared_lengths: Tensor | None = None) -> Tensor:
    """Returns the (B, C) Euclidean distances of unit vectors from their dot products.

    Args:
        cosines: (B, C); the first B columns are the rows themselves.
        further_squared_lengths: (C - B,) of the other columns, if there are any.
    """
    # Lengths are constant on the sphere. Taken from the products, they are 0 for a zero row, and
    # the distance of a point to itself and to its copies is exactly the floor.
    lengths = columns = cosines.detach().diagonal()
    if further_squared_lengths is not None:
        columns = torch.cat([lengths, further_squared_lengths])
    return root_of_squared(squared_distances(cosines, lengths.unsqueeze(1), columns))


def pair_masks(labels: Tensor, further_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns two (B, C) masks: same class without the diagonal, and different classes.

    Args:
        labels: (B,) of the rows, which are the first B columns.
        further_labels: (C - B,) of the other columns, if there are any.
    """
    columns = labels if further_labels is None else torch.cat([labels, further_labels])
    same = labels.unsqueeze(1) == columns
    negatives = ~same
    return same.fill_diagonal_(False), negatives


def mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of the finite values under the mask, as 0-dim; zero if there are none."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def log_sum_exp_where(values: Tensor, mask: Tensor) -> Tensor:
    """Returns log(sum(exp(values))) over the masked values of each row: (B, M) to (B,).

    An empty row gives a large negative finite number, with exponential zero.
    """
    return torch.logsumexp(values.masked_fill(~mask, _FAR_BELOW), dim=1)


def log_one_plus_exp(values: Tensor) -> Tensor:
    """Returns log(1 + exp(values)), exact in float64 and finite for all values."""
    # softplus switches to the identity at 20, an error of 2e-9.
    return torch.logaddexp(values, values.new_zeros(()))


class _UnitVectors(torch.autograd.Function):
    """Division by length, with a backward of three passes instead of autograd's eight."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
        lengths = torch.where(lengths > 0, lengths, torch.inf)
        unit = embeddings / lengths
        ctx.save_for_backward(unit, lengths)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, lengths = ctx.saved_tensors
        outward = (unit * gradient).sum(dim=1, keepdim=True)
        inward = torch.addcmul(gradient, unit, outward, value=-1)
        return inward.div_(lengths)


class _SelfProducts(torch.autograd.Function):
    """Products of a matrix with itself; symmetry saves one of two products in backward."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return dot_products(vectors, vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        with torch.autocast(vectors.device.type, enabled=False):
            return torch.mm(gradient + gradient.T, vectors)


class LabelDistances(NamedTuple):
    """Label distances of a batch, for losses on continuous labels."""

    anchors: Tensor
    """(A,) batch positions of the anchors."""
    distances: Tensor
    """(A, B) Euclidean distances in float64; infinite for excluded items."""
    valid: Tensor
    """(A, B) false for the anchor itself and for items with the anchor's label."""
    ranks: Tensor
    """(A, B) dense rank of each item's distance to the anchor, from 0."""
    left_out_pairs: Tensor
    """0-dim number of (anchor, other item) pairs excluded for equal labels."""


def label_distances(
    labels: Tensor, anchors: Tensor | None, *, choice: Literal["every", "heads"]
) -> LabelDistances:
    """Returns the label distances from every item, or from the given heads, to the batch.

    Args:
        labels: (B, L) continuous labels.
        anchors: (A,) batch positions of the heads; only read when choice is "heads".
        choice: the value of loss.anchors.
    """
    assert labels.ndim == 2, f"continuous labels are (B, L), not {tuple(labels.shape)}"
    chosen = _choose_anchors(labels, anchors, choice)
    # In float64 the difference of two float32 labels is practically exact, so ties stay ties.
    exact = labels.double()
    distances = exact_distances(exact[chosen], exact)
    itself = chosen.unsqueeze(1) == torch.arange(len(labels), device=labels.device)
    valid = (distances > 0) & ~itself
    distances = distances.masked_fill(~valid, torch.inf)
    return LabelDistances(
        anchors=chosen,
        distances=distances,
        valid=valid,
        ranks=_dense_ranks(distances),
        left_out_pairs=(~valid & ~itself).sum(),
    )


def exact_distances(left: Tensor, right: Tensor) -> Tensor:
    """Returns (A, B) Euclidean distances from differences, precise for near points far from 0.

    The gradient at distance zero is zero.
    """
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def _choose_anchors(labels: Tensor, anchors: Tensor | None, choice: str) -> Tensor:
    if choice == "every":
        return torch.arange(len(labels), device=labels.device)
    if anchors is None:
        raise ValueError(
            "loss.anchors is 'heads', which needs the positions of the anchors in the batch, "
            "because only they form triplets. Got a batch without anchors. Use the dense sampler, "
            "or set loss.anchors=every."
        )
    return anchors


def _dense_ranks(distances: Tensor) -> Tensor:
    ordered, order = distances.sort(dim=1)
    steps = torch.zeros_like(order)
    steps[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(order).scatter_(1, order, steps.cumsum(dim=1))
