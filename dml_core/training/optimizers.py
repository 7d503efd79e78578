"""Builds the optimiser, with groups for trunk, head and proxies, and its learning rates."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from dml_core.config.training import (
    AdamWConfig,
    CosineScheduleConfig,
    InverseTimeScheduleConfig,
    OptimizerConfig,
    ScheduleConfig,
    SgdConfig,
    StepScheduleConfig,
)
from dml_core.training.sampled_rows import EagerAdamW, EagerSgd, SampledRowsAdamW, SampledRowsSgd


def compute_learning_rate_factor(
    schedule: ScheduleConfig, *, epoch: int, step: int, num_steps: int
) -> float:
    """Returns what the learning rate is multiplied by.

    Args:
        schedule: the kind and its knobs.
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
    """Returns the optimiser; each part's group has its own base learning rate.

    Args:
        config: the optimiser's knobs.
        parts: parameters under "trunk", "head" and "proxies"; empty parts get no group.
        device: where the parameters are.
        samples_rows: whether gradients may be sparse, of rows that took part in the step.
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
    # One kernel for all parameters: a tenth of the time of one call each, on small networks.
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
    """Returns the present learning rate of each part."""
    return {group["part"]: float(group["lr"]) for group in optimizer.param_groups}
