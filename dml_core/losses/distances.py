"""Distances within a batch, of embeddings and of continuous labels."""

# B = batch, D = embedding dim, M = columns
# A = anchors, B = batch, L = label columns

from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SQUARED_DISTANCE_FLOOR = 1e-12
"""Squared distances are raised to this before the root, whose slope at zero is infinite."""

# Finite, because minus infinity in an empty row would turn the gradient into nan.
_FAR_BELOW = -1e30


def unit_vectors(embeddings: Tensor) -> Tensor:
    """Returns the rows at length 1; a zero row stays zero and gets no gradient."""
    return cast(Tensor, _UnitVectors.apply(embeddings))


def dot_products(left: Tensor, right: Tensor) -> Tensor:
    """Returns the (B, M) dot products of the rows of (B, D) with those of (M, D)."""
    # Autocast would compute the product in half precision, too coarse for differences of it.
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
    """Returns distances from squared ones, at least 1e-6, with a finite gradient everywhere."""
    return squared.clamp_min(SQUARED_DISTANCE_FLOOR).sqrt()


def sphere_distances(cosines: Tensor) -> Tensor:
    """Returns the (B, B) Euclidean distances of unit vectors from their dot products."""
    # On the sphere lengths are constant. Taken from the products, they are 0 for a zero row,
    # and a point's distance to itself and to its copies is exactly the floor.
    lengths = cosines.detach().diagonal()
    return root_of_squared(squared_distances(cosines, lengths.unsqueeze(1), lengths))


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


class _UnitVectors(torch.autograd.Function):
    """Division by length, with a gradient of three passes instead of autograd's eight."""

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
    """Products of a matrix with itself: the symmetry saves one of the gradient's two products."""

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
    """What the losses on continuous labels need to know of a batch's labels."""

    anchors: Tensor
    """(A,) batch positions of the anchors."""
    distances: Tensor
    """(A, B) Euclidean distances in float64; infinite where an item is left out."""
    valid: Tensor
    """(A, B) false at the anchor itself and at items with the anchor's very label."""
    ranks: Tensor
    """(A, B) place of each item's distance among the anchor's different ones, from 0."""
    left_out_pairs: Tensor
    """How many (anchor, other item) pairs are left out for equal labels; 0-dim."""


def label_distances(
    labels: Tensor, anchors: Tensor | None, *, choice: Literal["every", "heads"]
) -> LabelDistances:
    """Returns the label distances of every item, or of the given heads, to the batch.

    Args:
        labels: (B, L) continuous labels.
        anchors: (A,) batch positions of the heads; only read when choice is "heads".
        choice: the loss's `anchors` knob.
    """
    assert labels.ndim == 2, f"continuous labels are (B, L), not {tuple(labels.shape)}"
    chosen = _choose_anchors(labels, anchors, choice)
    # In float64 the difference of two float32 labels is as good as exact, so ties stay ties.
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
    """Returns (A, B) Euclidean distances by differences, so near points far out stay precise.

    The gradient at distance zero is zero.
    """
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def _choose_anchors(labels: Tensor, anchors: Tensor | None, choice: str) -> Tensor:
    if choice == "every":
        return torch.arange(len(labels), device=labels.device)
    if anchors is None:
        raise ValueError(
            "loss.anchors is 'heads', which needs the positions of the batch's anchors, since only "
            "they make triplets. Got none with this batch. Use the dense sampler, or set "
            "loss.anchors=every."
        )
    return anchors


def _dense_ranks(distances: Tensor) -> Tensor:
    ordered, order = distances.sort(dim=1)
    steps = torch.zeros_like(order)
    steps[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(order).scatter_(1, order, steps.cumsum(dim=1))
