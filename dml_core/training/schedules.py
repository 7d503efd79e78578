"""The learning rate as a function of the step, so that resuming needs no state."""

import math

from dml_core.config.optimizer import (
    CosineScheduleConfig,
    InverseTimeScheduleConfig,
    ScheduleConfig,
    StepScheduleConfig,
)


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
