"""Which samples of a class form a pair."""

# B = batch, P = pairs

from typing import NamedTuple

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """Disjoint pairs of one class, sorted by class and within it by batch order."""

    first: Tensor
    """(P,) batch positions of the earlier samples."""
    second: Tensor
    """(P,) batch positions of the later samples."""


def pairs_in_batch_order(labels: Tensor) -> Pairs:
    """Pairs each class's first sample with its second, its third with its fourth, and so on.

    The last sample of a class with an odd count stays alone.

    Args:
        labels: (B,) class indices.

    Example:
        Labels 7, 3, 7, 7, 3 give the pairs (1, 4) of class 3 and (0, 2) of class 7.
    """
    ordered, order = labels.sort(stable=True)
    place = torch.arange(len(labels), device=labels.device)
    same_as_next = ordered[1:] == ordered[:-1]
    # A class starts where its label differs from the one before; cummax carries the start along.
    starts = place.clone()
    starts[1:] = torch.where(same_as_next, 0, place[1:])
    rank_in_class = place - starts.cummax(dim=0).values
    head = (same_as_next & (rank_in_class[:-1] % 2 == 0)).nonzero().squeeze(1)
    return Pairs(order[head], order[head + 1])


def first_pairs_in_batch_order(labels: Tensor) -> Pairs:
    """Pairs each class's first sample with its second and leaves the others alone."""
    ordered, order = labels.sort(stable=True)
    starts_pair = ordered[1:] == ordered[:-1]
    starts_pair[1:] &= ordered[1:-1] != ordered[:-2]
    head = starts_pair.nonzero().squeeze(1)
    return Pairs(order[head], order[head + 1])


def pair_of_each_sample(pairs: Pairs, *, batch_size: int) -> Tensor:
    """Returns the (B,) number of the pair that each sample belongs to; -1 for one alone."""
    numbers = torch.arange(len(pairs.first), device=pairs.first.device)
    owner = numbers.new_full((batch_size,), -1)
    owner[pairs.first] = numbers
    owner[pairs.second] = numbers
    return owner
