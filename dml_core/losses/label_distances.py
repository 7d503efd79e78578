"""Distances between continuous labels, seen from each anchor."""

# A = anchors, B = batch, L = label columns

from typing import Literal, NamedTuple

import torch
from torch import Tensor


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
