"""Tests of the time and memory of a training step."""

from itertools import count

import pytest
import torch

from dml_core.config import TrialConfig
from dml_core.data.prepared import open_development
from dml_core.measures import step_cost
from dml_core.measures.results import list_winners
from dml_core.measures.step_cost import (
    StepBudget,
    measure_configs,
    measure_frozen,
    measure_peak_bytes,
    measure_step_cost,
    measure_trial,
)


@pytest.fixture
def configs(winners):
    return {winner.arm: winner.load().config for winner in list_winners(winners)}


def test_every_arm_has_a_time_and_a_memory_of_each_round(winners):
    measured = measure_step_cost(list_winners(winners), StepBudget(rounds=3, steps=2, warmup=1))
    assert set(measured.scalars) == {
        *("cost.step_seconds", "cost.memory_mib", "cost.trained_parameters")
    }
    for by_arm in measured.scalars.values():
        assert list(by_arm) == ["anchor", "nca", "triplet"]
        for by_round in by_arm.values():
            assert list(by_round) == [0, 1, 2]
            assert all(value > 0 for value in by_round.values())


def test_arms_take_turns(configs, monkeypatch):
    turns = []
    take = step_cost.take_step

    def watch(state, *arguments, **knobs):
        turns.append(state.config.loss.name)
        take(state, *arguments, **knobs)

    monkeypatch.setattr(step_cost, "take_step", watch)
    two = {name: configs[name] for name in ("nca", "triplet")}
    measure_configs(two, StepBudget(rounds=2, steps=2, warmup=1))
    # A turn is two timed steps and one whose memory is looked at.
    assert turns == ["proxy_nca", "triplet", *(["proxy_nca"] * 3 + ["triplet"] * 3) * 2]


def test_more_images_need_more_memory(configs):
    def change(size):
        sampler = configs["nca"].sampler.model_copy(update={"batch_size": size})
        return configs["nca"].model_copy(update={"sampler": sampler})

    budget = StepBudget(rounds=2, steps=1, warmup=1)
    measured = measure_configs({"small": change(8), "large": change(24)}, budget)
    memory = measured.scalars["cost.memory_mib"]
    assert 2 < memory["large"][0] / memory["small"][0] < 3.5
    # Counted, not sampled: every round says the same.
    assert memory["small"][0] == pytest.approx(memory["small"][1], rel=0.01)


def test_an_epoch_with_fewer_batches_than_steps_is_repeated(configs):
    # 48 images in batches of 24 make two steps.
    sampler = configs["nca"].sampler.model_copy(update={"batch_size": 24})
    config = configs["nca"].model_copy(update={"sampler": sampler})
    measured = measure_configs({"only": config}, StepBudget(rounds=1, steps=7, warmup=3))
    assert list(measured.scalars["cost.step_seconds"]["only"]) == [0]


CPU = torch.device("cpu")


def test_a_trial_takes_its_steps_and_its_validations(configs, monkeypatch):
    ticks = count()
    # Each look at the clock is a second later than the one before.
    monkeypatch.setattr(step_cost.time, "perf_counter", lambda: float(next(ticks)))
    config = configs["nca"]
    training = config.training.model_copy(update={"epochs": 9, "validate_every": 4})
    config = config.model_copy(update={"training": training})
    data = open_development(config.data)
    steps = len(data.train) // config.sampler.batch_size
    cost = measure_trial(config, data, steps=2)
    assert (cost.step, cost.validation, cost.steps_per_epoch) == (1, 1, steps)
    # Validations after the epochs 4, 8 and 9.
    assert cost.seconds(config) == 9 * steps + 3


def test_only_views_that_are_not_stored_count_for_the_frozen_part(configs, monkeypatch):
    config = configs["nca"]
    data = open_development(config.data)
    assert measure_frozen(config, data).seconds == 0
    frozen = {"train": "none", "cache_views": 3}
    config = TrialConfig.model_validate(config.model_dump() | {"trunk": frozen})
    ticks = count()
    monkeypatch.setattr(step_cost.time, "perf_counter", lambda: float(next(ticks)))
    cost = measure_frozen(config, data)
    num_images = 3 * len(data.train) + len(data.validation)
    assert (cost.image, cost.num_missing) == (1 / 32, num_images)
    assert cost.seconds == num_images / 32


def test_the_peak_counts_what_is_held_at_one_time():
    def work():
        first = torch.zeros(1000)
        second = torch.zeros(2000)
        del first
        third = torch.zeros(500)
        return second, third

    # 4 bytes a number: 3,000 numbers while the first two are held.
    assert measure_peak_bytes(work, device=CPU) == 12_000


def test_earlier_allocations_do_not_count():
    before = torch.zeros(100_000)
    assert 400_000 <= measure_peak_bytes(lambda: before + 1, device=CPU) < 400_100
    assert measure_peak_bytes(lambda: before.add_(1), device=CPU) < 100


def test_a_backward_pass_counts_its_gradients():
    weights = torch.ones(10_000, requires_grad=True)

    def work():
        (weights * weights).sum().backward()

    # The product, then at least the gradient of the weights: more than one array, below five.
    assert 2 * 40_000 <= measure_peak_bytes(work, device=CPU) < 5 * 40_000
