"""Batch norm over a batch that several workers share.

torch's SyncBatchNorm works on GPUs alone, and converting modules would miss those that call the
function themselves, as timm's do. So the function is replaced while the network runs.
"""

# B = batch, C = channels

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dml_core.training.team import Team


class TeamBatchNorm(TorchFunctionMode):
    """Within it, batch norms that learn their statistics learn them from the whole batch."""

    def __init__(self, team: Team) -> None:
        super().__init__()
        self._team = team

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, or what stands for it here."""
        if func is functional.batch_norm and (kwargs or {}).get("training"):
            return batch_norm_of_team(self._team, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Statistics(NamedTuple):
    """Of the whole batch, for each channel."""

    num_values: Tensor
    """(C,) values of a channel."""
    mean: Tensor
    """(C,)."""
    variance: Tensor
    """(C,) with the count as divisor."""


def batch_norm_of_team(
    team: Team,
    values: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Returns what torch.nn.functional.batch_norm would of the whole batch: this member's part.

    Args:
        team: the workers that share the batch.
        values: (B, C, ...) of this member.
        running_mean: (C,) moved towards the batch's mean.
        running_var: (C,) moved towards the batch's variance, with the count less one as divisor.
        weight: (C,) factor.
        bias: (C,) summand.
        training: always true here.
        momentum: how far the running statistics move.
        eps: added to the variance.
    """
    exact = values.to(torch.promote_types(values.dtype, torch.float32))
    found = _measure(team, exact.detach())
    with torch.no_grad():
        if running_mean is not None and running_var is not None:
            unbiased = found.variance * (found.num_values / (found.num_values - 1).clamp(min=1))
            running_mean.lerp_(found.mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    inverse = (found.variance + eps).rsqrt()
    normal: Tensor = _Normalize.apply(exact, found.mean, inverse, found.num_values, team)
    shape = _shape(values)
    if weight is not None:
        normal = normal * weight.view(shape)
    if bias is not None:
        normal = normal + bias.view(shape)
    return normal.to(values.dtype)


def _measure(team: Team, values: Tensor) -> Statistics:
    """Returns the statistics of the whole batch, from those of its parts."""
    axes = _axes(values)
    variance, mean = torch.var_mean(values, axes, correction=0)
    count = torch.full_like(mean, values.numel() // values.shape[1])
    # (members, 3, C) in double, in which the parts' rounding is all that is left.
    parts = team.gather(torch.stack([count, mean, variance]).double().unsqueeze(0), count=team.size)
    counts, means, variances = parts.unbind(1)
    total = counts.sum(0)
    shares = counts / total
    overall = (shares * means).sum(0)
    spread = (shares * (variances + (means - overall).square())).sum(0)
    return Statistics(*(each.to(mean.dtype) for each in (total, overall, spread)))


class _Normalize(torch.autograd.Function):
    """(x - mean) / deviation, where mean and deviation depend on the x of all members."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mean: Tensor, inverse: Tensor, count: Tensor, team: Team
    ) -> Tensor:
        shape = _shape(values)
        normal = (values - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normal, inverse)
        ctx.count, ctx.team = count, team
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        normal, inverse = ctx.saved_tensors
        axes, shape = _axes(normal), _shape(normal)
        sums = torch.stack([gradient.sum(axes), (gradient * normal).sum(axes)])
        ctx.team.add_up(sums)
        mean, along = (sums / ctx.count).unbind(0)
        moved = gradient - mean.view(shape) - normal * along.view(shape)
        return moved * inverse.view(shape), None, None, None, None


def _axes(values: Tensor) -> list[int]:
    return [axis for axis in range(values.ndim) if axis != 1]


def _shape(values: Tensor) -> list[int]:
    return [1, values.shape[1], *[1] * (values.ndim - 2)]
