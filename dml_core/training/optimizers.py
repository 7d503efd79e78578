"""Optimisers, their parameter groups and learning rates, and sparse updates of sampled rows."""

# C = rows of the parameter, K = sampled rows, D = length of a row

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from dml_core.config.training import (
    AdamWConfig,
    CosineScheduleConfig,
    InverseTimeScheduleConfig,
    OptimizerConfig,
    ScheduleConfig,
    SgdConfig,
    StepScheduleConfig,
)


def compute_learning_rate_factor(
    schedule: ScheduleConfig, *, epoch: int, step: int, num_steps: int
) -> float:
    """Returns the factor of the base learning rate.

    Args:
        schedule: the schedule's configuration.
        epoch: finished epochs.
        step: finished steps since the start of training.
        num_steps: steps of the whole training.
    """
    match schedule:
        case StepScheduleConfig():
            return schedule.gamma ** (epoch // schedule.epochs)
        case CosineScheduleConfig():
            half_wave = 0.5 * (1 + math.cos(math.pi * step / max(1, num_steps)))
            return schedule.final_fraction + (1 - schedule.final_fraction) * half_wave
        case InverseTimeScheduleConfig():
            return 1 / (1 + schedule.decay * step)
        case _:
            return 1.0


def build_optimizer(
    config: OptimizerConfig,
    *,
    parts: dict[str, Iterable[nn.Parameter]],
    device: torch.device,
    samples_rows: bool = False,
) -> Optimizer:
    """Returns the optimiser with one parameter group and base learning rate per part.

    Args:
        config: the optimiser's configuration.
        parts: parameters under "trunk", "head" and "proxies"; empty parts get no group.
        device: where the parameters are.
        samples_rows: whether gradients may be sparse, with the sampled rows only.
    """
    factors = {
        "trunk": config.trunk_factor,
        "head": config.head_factor,
        "proxies": config.proxy_factor,
    }
    groups = []
    for part, parameters in parts.items():
        rate = config.learning_rate * factors[part]
        if chosen := list(parameters):
            groups.append({"params": chosen, "lr": rate, "base_lr": rate, "part": part})
    # One kernel for all parameters takes a tenth of the time on small networks.
    fused = device.type in ("cpu", "cuda")
    if isinstance(config, AdamWConfig):
        betas = (config.beta1, config.beta2)
        adamw = SampledRowsAdamW if samples_rows else EagerAdamW
        return adamw(groups, betas=betas, weight_decay=config.weight_decay, fused=fused)
    assert isinstance(config, SgdConfig)
    sgd = SampledRowsSgd if samples_rows else EagerSgd
    return sgd(groups, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused)


def set_learning_rates(optimizer: Optimizer, factor: float) -> None:
    """Sets every group's learning rate to its base times the factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def get_learning_rates(optimizer: Optimizer) -> dict[str, float]:
    """Returns the current learning rate of each part."""
    return {group["part"]: float(group["lr"]) for group in optimizer.param_groups}


def _bare(method: Callable[..., Any]) -> Any:
    return inspect.unwrap(method)


class EagerOptimizer(Optimizer):
    """Methods of torch's optimisers without the decorator that imports torch's compiler."""

    add_param_group = _bare(Optimizer.add_param_group)
    zero_grad = _bare(Optimizer.zero_grad)
    state_dict = _bare(Optimizer.state_dict)
    load_state_dict = _bare(Optimizer.load_state_dict)


class EagerAdamW(EagerOptimizer, AdamW):
    """torch's AdamW, bit for bit."""

    # The removed decorator also disables gradients, so no_grad replaces it.
    step = torch.no_grad()(_bare(AdamW.step))


class EagerSgd(EagerOptimizer, SGD):
    """torch's SGD, bit for bit."""

    step = torch.no_grad()(_bare(SGD.step))


# Enough rows to fill vector units, few enough for intermediate results to stay in the cache.
_VALUES_AT_ONCE = 2**17
# torch keeps one step count per parameter under this name; here it is one per row.
_STEPS = "step"


class SampledRowsOptimizer(Optimizer):
    """Adds sparse updates to an optimiser; dense gradients are handled by torch.

    Each row behaves as if it had its own optimiser, stepped only when sampled. A sparse gradient
    holds each row at most once. Checkpoints omit the state of rows that were never sampled.
    """

    @abstractmethod
    def init_rows(self, parameter: Tensor) -> dict[str, Tensor]:
        """Returns the state of all rows before their first step, without the step counts."""

    @abstractmethod
    def update_rows(
        self, parameter: Tensor, rows: Tensor, gradient: Tensor, group: dict[str, Any]
    ) -> None:
        """Updates some rows and their state in place; their counts include this step.

        Args:
            parameter: (C, D).
            rows: (K,) indices of the rows.
            gradient: (K, D) gradients of the rows.
            group: the parameter group.
        """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient."""
        assert closure is None, "a closure would evaluate the loss again"
        sampled = [
            (parameter, parameter.grad, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for parameter, _, _ in sampled:
            parameter.grad = None
        super().step()
        for parameter, gradient, group in sampled:
            self._move(parameter, gradient, group)
            parameter.grad = gradient

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not _has_rows(state):
            counts = torch.zeros(len(parameter), device=parameter.device)
            self.state[parameter] = state = {_STEPS: counts, **self.init_rows(parameter)}
        at_once = max(1, _VALUES_AT_ONCE // max(1, parameter.shape[1]))
        rows, values = gradient._indices()[0], gradient._values()
        for start in range(0, len(rows), at_once):
            some, of_some = rows[start : start + at_once], values[start : start + at_once]
            state[_STEPS].index_add_(0, some, torch.ones_like(some, dtype=torch.float32))
            self.update_rows(parameter, some, of_some, group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state without that of rows that were never sampled."""
        packed = super().state_dict()
        return {**packed, "state": {key: _pack(of) for key, of in packed["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state from `state_dict`."""
        states = {key: _unpack(packed) for key, packed in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": states})


class SampledRowsAdamW(SampledRowsOptimizer, EagerAdamW):
    """AdamW with bias correction by each row's own number of steps."""

    def init_rows(self, parameter: Tensor) -> dict[str, Tensor]:
        """Returns zero moments, both moments of a row adjacent.

        Locating a row in a gigabyte takes longer than reading it, so both share one lookup.
        """
        return {"moments": parameter.new_zeros(len(parameter), 2, parameter.shape[1])}

    def update_rows(
        self, parameter: Tensor, rows: Tensor, gradient: Tensor, group: dict[str, Any]
    ) -> None:
        """Updates rows by AdamW's rule."""
        (beta1, beta2), rate = group["betas"], group["lr"]
        state = self.state[parameter]
        # In double, as torch does: 1 - 0.999 keeps only four digits in single precision.
        steps = state[_STEPS].index_select(0, rows).double().unsqueeze(1)
        second_scale = (1 - beta2**steps).sqrt_()
        first_scale = (-rate * second_scale / (1 - beta1**steps)).to(gradient.dtype)
        epsilon = (group["eps"] * second_scale).to(gradient.dtype)
        both = state["moments"].index_select(0, rows)
        first, second = both.unbind(1)
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        _put(state["moments"].flatten(1), rows, both.flatten(1))
        moved = parameter.index_select(0, rows).mul_(1 - rate * group["weight_decay"])
        moved.addcdiv_(first.mul_(first_scale), second.sqrt_().add_(epsilon))
        _put(parameter, rows, moved)


class SampledRowsSgd(SampledRowsOptimizer, EagerSgd):
    """SGD with each row's own momentum."""

    def init_rows(self, parameter: Tensor) -> dict[str, Tensor]:
        """Returns zero momentum."""
        return {"momentum_buffer": torch.zeros_like(parameter)}

    def update_rows(
        self, parameter: Tensor, rows: Tensor, gradient: Tensor, group: dict[str, Any]
    ) -> None:
        """Updates rows by their momentum; weight decay is part of the gradient."""
        moved = parameter.index_select(0, rows)
        pull = gradient.add(moved, alpha=group["weight_decay"])
        momentum = self.state[parameter]["momentum_buffer"]
        speed = momentum.index_select(0, rows).mul_(group["momentum"]).add_(pull)
        _put(momentum, rows, speed)
        _put(parameter, rows, moved.add_(speed, alpha=-group["lr"]))


def with_dense_gradient(parameter: Tensor) -> Tensor:
    """Returns a tensor with the parameter's gradient in dense form, for clipping in place.

    For a sparse gradient it is a tensor of the sampled rows that shares the gradient's memory,
    otherwise the parameter itself.
    """
    if parameter.grad is None or not parameter.grad.is_sparse:
        return parameter
    values = parameter.grad._values()
    stand_in = torch.empty_like(values)
    stand_in.grad = values
    return stand_in


def _put(whole: Tensor, rows: Tensor, values: Tensor) -> None:
    """Writes rows of a contiguous (C, D) tensor."""
    if whole.device.type != "cpu" or not whole.is_contiguous():
        whole.index_copy_(0, rows, values)
        return
    # NumPy copies a row as one item of many bytes, three times as fast as torch.
    row = f"V{whole.shape[1] * whole.element_size()}"
    target, source = whole.detach().numpy().view(row), values.numpy().view(row)
    target[rows.numpy(), 0] = source[:, 0]


def _has_rows(state: dict[str, Any]) -> bool:
    """Returns whether a parameter's state is stored by row."""
    return _STEPS in state and state[_STEPS].ndim == 1


def _pack(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of the rows that were ever sampled, if they are the minority."""
    if not _has_rows(state):
        return state
    rows = state[_STEPS].nonzero().squeeze(1)
    # Otherwise the copy would cost more memory than it saves on disk.
    if 2 * len(rows) > len(state[_STEPS]):
        return state
    chosen = {name: values.index_select(0, rows) for name, values in state.items()}
    return {"rows": rows, "num_rows": len(state[_STEPS]), **chosen}


def _unpack(packed: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of all rows."""
    if "rows" not in packed:
        return packed
    rows, count = packed["rows"], packed["num_rows"]
    return {
        name: values.new_zeros(count, *values.shape[1:]).index_copy_(0, rows, values)
        for name, values in packed.items()
        if name not in ("rows", "num_rows")
    }
