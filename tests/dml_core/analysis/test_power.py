import math
from itertools import pairwise

import numpy as np
import pytest

from dml_core.analysis.intervals import MOST_SEEDS, compute_power, count_seeds_needed, estimate_mean


def simulate_power(num_seeds, *, deviation, difference, alpha=0.05, count=100_000):
    random = np.random.default_rng(1)
    sample = random.normal(difference, deviation, size=(count, num_seeds))
    return float((estimate_mean(sample).p_value <= alpha).mean())


@pytest.mark.parametrize("num_seeds", [2, 4, 9, 30])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0])
def test_the_power_is_the_share_of_simulations_that_find_the_difference(num_seeds, ratio):
    computed = compute_power(num_seeds, deviation=0.01, difference=0.01 * ratio)
    simulated = simulate_power(num_seeds, deviation=0.01, difference=0.01 * ratio, count=20_000)
    assert computed == pytest.approx(simulated, abs=0.012)


@pytest.mark.parametrize("deviation", [0.002, 0.005, 0.01])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 15])
def test_the_seeds_needed_give_80_percent_power_and_one_less_does_not(deviation, alpha):
    needed = count_seeds_needed(deviation=deviation, difference=0.005, alpha=alpha)
    enough = simulate_power(needed, deviation=deviation, difference=0.005, alpha=alpha)
    fewer = simulate_power(needed - 1, deviation=deviation, difference=0.005, alpha=alpha)
    assert enough > 0.795
    assert fewer < 0.805


def test_the_power_is_a_number_that_grows_with_the_seeds_wherever_it_is_asked():
    for alpha in (0.05, 0.001):
        for ratio in (0.001, 0.03, 0.3, 1.0, 3.0, 30.0, 1e4):
            powers = [
                compute_power(num_seeds, deviation=1.0, difference=ratio, alpha=alpha)
                for num_seeds in (2, 3, 4, 6, 10, 20, 40, 100, 400, 2000, 10_000)
            ]
            assert all(0 <= power <= 1 for power in powers)
            assert all(more >= less - 1e-9 for less, more in pairwise(powers))


def test_textbook_sizes():
    # A difference of half a deviation needs 34 pairs, of a whole one 10 (Cohen, 1988).
    assert count_seeds_needed(deviation=2.0, difference=1.0) == 34
    assert count_seeds_needed(deviation=1.0, difference=1.0) == 10


def test_no_spread_needs_two_seeds_and_too_large_a_spread_has_no_answer():
    assert count_seeds_needed(deviation=0.0, difference=0.005) == 2
    assert count_seeds_needed(deviation=1.0, difference=0.005) is None


def test_the_largest_number_is_found_and_the_next_is_not():
    # For large n the power depends on sqrt(n) times difference by deviation: 2.8016 gives 80 %.
    edge = 2.8016 / math.sqrt(MOST_SEEDS)
    found = count_seeds_needed(deviation=1.0, difference=edge * 1.001)
    assert MOST_SEEDS * 0.99 < found <= MOST_SEEDS
    assert count_seeds_needed(deviation=1.0, difference=edge * 0.999) is None


def test_a_tiny_spread_has_full_power():
    assert compute_power(5, deviation=1e-9, difference=0.01) == 1.0
    assert count_seeds_needed(deviation=1e-9, difference=0.01) == 2


@pytest.mark.parametrize(
    "knobs",
    [
        {"deviation": -1.0, "difference": 0.1},
        {"deviation": 1.0, "difference": 0.0},
        {"deviation": math.nan, "difference": 0.1},
        {"deviation": 1.0, "difference": 0.1, "power": 1.0},
    ],
)
def test_senseless_sizes_are_refused(knobs):
    with pytest.raises(ValueError, match="must be >= 0, difference > 0"):
        count_seeds_needed(**knobs)
