"""Tests of intervals and the seeds that a power needs."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dml_core.analysis.intervals import (
    MOST_SEEDS,
    adjust_holm,
    compute_power,
    count_seeds_needed,
    estimate_mean,
)


def test_a_worked_interval():
    # Values 1, 2, 3: mean 2, deviation 1, error 1/sqrt(3); t for 2 degrees of freedom is 4.302653.
    estimate = estimate_mean([1.0, 2.0, 3.0])
    assert estimate.mean == 2
    assert estimate.deviation == 1
    assert estimate.high - 2 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)
    assert 2 - estimate.low == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)


def test_interval_and_p_value_are_those_of_scipys_test():
    sample = np.random.default_rng(3).normal(0.4, 1, size=(50, 6))
    estimate = estimate_mean(sample)
    reference = stats.ttest_1samp(sample, 0, axis=-1)
    interval = reference.confidence_interval(0.95)
    np.testing.assert_allclose(estimate.p_value, reference.pvalue)
    np.testing.assert_allclose(estimate.low, interval.low)
    np.testing.assert_allclose(estimate.high, interval.high)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
def test_the_interval_holds_the_truth_in_95_of_100_simulations(num_seeds):
    # 200,000 simulations: the standard error of the share is 0.05 %.
    sample = np.random.default_rng(0).normal(0.7, 0.02, size=(200_000, num_seeds))
    estimate = estimate_mean(sample)
    covered = ((estimate.low <= 0.7) & (estimate.high >= 0.7)).mean()
    assert 0.948 < covered < 0.952


def test_equal_values_have_no_spread_and_no_p_value_below_one():
    estimate = estimate_mean([[0.3, 0.3, 0.3], [0.1 + 0.2, 0.3, 0.3], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(estimate.deviation, 0)
    np.testing.assert_array_equal(estimate.p_value, 1)
    np.testing.assert_array_equal(estimate.low, estimate.high)


@pytest.mark.parametrize("values", [[], [1.0], [[1.0], [2.0]], 3.0])
def test_fewer_than_two_values_are_refused(values):
    with pytest.raises(ValueError, match=r"at least two values.*Got shape"):
        estimate_mean(values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match=f"must be finite.*Got {value}"):
        estimate_mean([1.0, value])


def test_holms_worked_example():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.06 (never falling).
    np.testing.assert_allclose(adjust_holm([0.03, 0.01, 0.04, 0.02]), [0.06, 0.04, 0.06, 0.06])
    np.testing.assert_allclose(adjust_holm([0.5, 0.9]), [1.0, 1.0])
    np.testing.assert_allclose(adjust_holm([0.03]), [0.03])
    assert adjust_holm([]).shape == (0,)


def holm_by_definition(p_values, alpha):
    """Rejects the smallest while it is at most alpha over the number that is left."""
    rejected, left = set(), dict(enumerate(p_values))
    while left:
        smallest = min(left, key=lambda place: left[place])
        if left[smallest] > alpha / len(left):
            break
        rejected.add(smallest)
        del left[smallest]
    return rejected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8), st.sampled_from([0.01, 0.05, 0.2]))
def test_adjusted_p_values_reject_what_holms_procedure_rejects(p_values, alpha):
    adjusted = adjust_holm(p_values)
    # Values at the threshold to the last bit may fall on either side.
    if any(abs(value - alpha) < 1e-9 for value in adjusted):
        return
    assert set(np.flatnonzero(adjusted <= alpha).tolist()) == holm_by_definition(p_values, alpha)


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


def test_the_power_is_finite_and_grows_with_the_seeds():
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
def test_invalid_sizes_are_refused(knobs):
    with pytest.raises(ValueError, match="must be >= 0, difference > 0"):
        count_seeds_needed(**knobs)
