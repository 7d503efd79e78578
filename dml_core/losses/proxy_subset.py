"""The random subset of classes that takes part in one step of a proxy loss."""

# B = batch, K = proxies that take part

from typing import NamedTuple

import torch
from torch import Tensor


class ProxySubset(NamedTuple):
    """Which classes take part, and where those of the batch stand among them."""

    classes: Tensor
    """(K,) class indices without repetition, those of the batch first; both ascend."""
    targets: Tensor
    """(B,) position of each image's class in `classes`."""


def draw_proxy_subset(
    labels: Tensor, *, num_classes: int, size: int, generator: torch.Generator
) -> ProxySubset:
    """Returns all classes of the batch and others drawn uniformly up to `size` in total.

    Every set of other classes of the wanted number is equally likely. Takes time and memory in
    proportion to the subset, not to num_classes. A batch with more than `size` classes gets
    exactly its own.

    Args:
        labels: (B,) class indices below num_classes.
        num_classes: number of all classes.
        size: how many classes take part.
        generator: a CPU stream; the draw does not depend on the device of the labels.
    """
    present, targets = torch.unique(labels, return_inverse=True)
    num_absent = num_classes - present.numel()
    num_drawn = max(0, min(size, num_classes) - present.numel())
    ranks = _draw_distinct(num_absent, num_drawn, generator).to(labels.device)
    # present[k] - k absent classes stand before present[k], so this many present ones precede.
    gaps = present - torch.arange(present.numel(), device=labels.device)
    absent = ranks + torch.searchsorted(gaps, ranks, right=True)
    return ProxySubset(classes=torch.cat([present, absent]), targets=targets)


def _draw_distinct(bound: int, count: int, generator: torch.Generator) -> Tensor:
    """Returns `count` distinct numbers below `bound`, ascending, every set equally likely.

    Rows of memory that are visited in their order are found faster.
    """
    if 4 * count >= bound:
        return torch.randperm(bound, generator=generator)[:count].sort().values
    # Draws with repetition treat all numbers alike, so any choice among the distinct ones that
    # does not look at their values is uniform; at a quarter at most, repetitions are few.
    numbers = torch.empty(0, dtype=torch.int64)
    while numbers.numel() < count:
        more = torch.randint(bound, (count + count // 4 + 8,), generator=generator)
        numbers = torch.unique(torch.cat([numbers, more]))
    surplus = torch.randperm(numbers.numel(), generator=generator)[count:]
    return numbers[torch.ones_like(numbers, dtype=torch.bool).index_fill_(0, surplus, False)]
