import math

import pytest

from dml_core.config.training import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    InverseTimeScheduleConfig,
    StepScheduleConfig,
)
from dml_core.training.optimizers import compute_learning_rate_factor as factor


def test_constant_stays():
    assert factor(ConstantScheduleConfig(), epoch=7, step=700, num_steps=1000) == 1.0


@pytest.mark.parametrize(("epoch", "expected"), [(0, 1), (9, 1), (10, 0.5), (19, 0.5), (20, 0.25)])
def test_step_halves_every_ten_epochs(epoch, expected):
    schedule = StepScheduleConfig(epochs=10, gamma=0.5)
    assert factor(schedule, epoch=epoch, step=epoch * 5, num_steps=1000) == expected


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 1.0), (25, 0.5 * (1 + math.sqrt(0.5))), (50, 0.5), (100, 0.0)]
)
def test_cosine_falls_along_half_a_wave(step, expected):
    value = factor(CosineScheduleConfig(), epoch=0, step=step, num_steps=100)
    assert value == pytest.approx(expected, abs=1e-12)


def test_cosine_ends_at_its_final_fraction():
    schedule = CosineScheduleConfig(final_fraction=0.1)
    assert factor(schedule, epoch=0, step=100, num_steps=100) == pytest.approx(0.1)


def test_inverse_time_divides_by_one_plus_decay_times_step():
    # The log-ratio recipe: 1 / (1 + 1e-4 * 5000) = 2/3.
    schedule = InverseTimeScheduleConfig(decay=1e-4)
    assert factor(schedule, epoch=0, step=5000, num_steps=10) == pytest.approx(2 / 3)
