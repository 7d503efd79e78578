"""The logarithms of sums of exponentials that the proxy losses end in, without overflow."""

import torch
from torch import Tensor
from torch.nn import functional

# Beyond it log(1 + e^x) equals x in float64 too; the default of 20 would be off by 2e-9.
LINEAR_ABOVE = 40.0


def log_one_plus_exp(values: Tensor) -> Tensor:
    """Returns log(1 + e^x) of each value: finite at any size, precise near zero."""
    return functional.softplus(values, threshold=LINEAR_ABOVE)


def grouped_log_one_plus_sum_exp(values: Tensor, groups: Tensor, *, num_groups: int) -> Tensor:
    """Returns (G,) log(1 + sum of e^x over the values of each group); 0 for an empty group.

    Args:
        values: (B,).
        groups: (B,) the group of each value, below num_groups.
        num_groups: G.
    """
    # The highest value is a constant of the computation: its derivative cancels out. Starting
    # from zeros makes it the highest of the group's values and of the added zero.
    highest = values.new_zeros(num_groups)
    highest = highest.scatter_reduce(0, groups, values.detach(), "amax")
    sums = torch.exp(-highest).index_add(0, groups, torch.exp(values - highest[groups]))
    return sums.log() + highest
