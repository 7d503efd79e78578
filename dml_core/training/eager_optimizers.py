"""Torch's optimisers without their ties to its compiler.

The methods of an optimiser import that compiler to tell it to keep away from them. This takes four
seconds in a new process, as long as torch itself, and sweeps start many. Only networks are
compiled here (`training.compile`), never an optimiser, so that its methods can do without.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, AdamW, Optimizer


def _bare(method: Callable[..., Any]) -> Any:
    return inspect.unwrap(method)


class EagerOptimizer(Optimizer):
    """The methods that all optimisers share."""

    add_param_group = _bare(Optimizer.add_param_group)
    zero_grad = _bare(Optimizer.zero_grad)
    state_dict = _bare(Optimizer.state_dict)
    load_state_dict = _bare(Optimizer.load_state_dict)


class EagerAdamW(EagerOptimizer, AdamW):
    """AdamW, the same bit for bit."""

    # What is taken off also turns gradients off, as long as the step itself has none.
    step = torch.no_grad()(_bare(AdamW.step))


class EagerSgd(EagerOptimizer, SGD):
    """Stochastic gradient descent, the same bit for bit."""

    step = torch.no_grad()(_bare(SGD.step))
