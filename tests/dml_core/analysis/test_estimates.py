import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dml_core.analysis.estimates import (
    MOST_SEEDS,
    ArmMeans,
    Contrasts,
    count_seeds_needed,
    estimate_interval,
    estimate_mean,
    find_discoveries,
    next_level,
)


def by_seed(*values):
    return dict(enumerate(values))


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


def test_the_difference_of_two_arms_is_welchs_test_of_scipy():
    random = np.random.default_rng(1)
    left, right = random.normal(0.6, 0.05, 4), random.normal(0.5, 0.01, 7)
    found = ArmMeans.of([by_seed(*left), by_seed(*right)]).contrast([1, -1])
    reference = stats.ttest_ind(left, right, equal_var=False)
    interval = reference.confidence_interval(0.95)
    assert found.p_differs[0] == pytest.approx(reference.pvalue)
    assert found.freedom[0] == pytest.approx(reference.df)
    low, high = found.interval()
    assert (low[0], high[0]) == pytest.approx((interval.low, interval.high))


def test_two_one_sided_tests_are_those_of_scipy():
    random = np.random.default_rng(2)
    left, right = random.normal(0.600, 0.004, 6), random.normal(0.598, 0.004, 6)
    found = ArmMeans.of([by_seed(*left), by_seed(*right)]).contrast([1, -1])
    above = stats.ttest_ind(left + 0.01, right, equal_var=False, alternative="greater").pvalue
    below = stats.ttest_ind(left - 0.01, right, equal_var=False, alternative="less").pvalue
    assert found.p_within(0.01)[0] == pytest.approx(max(above, below))


def test_a_contrast_of_several_arms_by_hand():
    # Means 2, 6, 4 with variances 2, 8, 2 of two seeds: 2 - (6 + 4) / 2 = -3.
    means = ArmMeans.of([by_seed(1.0, 3.0), by_seed(4.0, 8.0), by_seed(3.0, 5.0)])
    found = means.contrast([1, -0.5, -0.5])
    # Error squared: 2 / 2 + 0.25 * 8 / 2 + 0.25 * 2 / 2 = 1 + 1 + 0.25 = 2.25.
    assert (found.value[0], found.error[0]) == (-3, 1.5)
    # Satterthwaite: 2.25 ** 2 / (1 + 1 + 0.0625), each part with one degree of freedom.
    assert found.freedom[0] == pytest.approx(2.25**2 / 2.0625)


def test_a_shift_that_all_arms_share_with_a_seed_leaves_the_differences_sharp():
    random = np.random.default_rng(4)
    own = random.normal(0, 0.01, size=(8, 5))
    plain = ArmMeans.of_table(own)
    shifted = ArmMeans.of_table(own + random.normal(0, 0.2, size=5))
    # The shifts would make each variance about 400 times as large.
    np.testing.assert_allclose(shifted.variance, plain.variance, rtol=0.5)
    np.testing.assert_allclose(
        shifted.mean - shifted.mean[0], plain.mean - plain.mean[0], atol=1e-12
    )


def test_the_variance_is_not_taken_for_too_small_on_average():
    # 4,000 tables of 6 arms: the standard error of the mean variance is about 0.6 %.
    table = np.random.default_rng(6).normal(0, 0.02, size=(4000, 6, 5))
    assert ArmMeans.of_table(table).variance.mean() == pytest.approx(0.02**2, rel=0.03)


def test_arms_may_have_other_seeds():
    table = np.random.default_rng(7).normal(0.5, 0.02, size=(6, 4))
    scores = [dict(enumerate(row)) for row in table] + [{8: 0.4, 9: 0.45}]
    means = ArmMeans.of(scores)
    np.testing.assert_allclose(means.mean[:6], table.mean(axis=1))
    assert means.count.tolist() == [4, 4, 4, 4, 4, 4, 2]
    assert means.variance[6] == pytest.approx(0.05**2 / 2)


def test_without_a_spread_there_is_no_test():
    found = ArmMeans.of([by_seed(0.5, 0.5), by_seed(0.4, 0.4)]).contrast([1, -1])
    assert (found.p_differs[0], found.p_within(0.2)[0]) == (1, 1)
    assert found.chance_above_zero[0] == 1


def test_the_chance_of_being_above_zero_grows_with_the_value():
    found = Contrasts(np.array([-0.02, 0.0, 0.02]), np.full(3, 0.01), np.full(3, 4.0))
    # Student's t with 4 degrees of freedom is below 2 in 94.194 % of cases.
    np.testing.assert_allclose(found.chance_above_zero, [0.05806, 0.5, 0.94194], atol=1e-5)


def discoveries_by_definition(p_values, alpha):
    """Benjamini, Krieger and Yekutieli's two stages, step by step."""

    def step_up(level):
        found = set()
        for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__), 1):
            if p_values[place] <= level * rank / len(p_values):
                limit = p_values[place]
                found = {p for p, value in enumerate(p_values) if value <= limit}
        return found

    level = alpha / (1 + alpha)
    first = step_up(level)
    if not first or len(first) == len(p_values):
        return {place for place in first if p_values[place] <= alpha}
    second = step_up(level * len(p_values) / (len(p_values) - len(first)))
    return {place for place in second if p_values[place] <= alpha}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.sampled_from([0.01, 0.05, 0.2]))
def test_discoveries_are_those_of_the_two_stage_procedure(p_values, alpha):
    found = find_discoveries(p_values, alpha=alpha)
    assert set(np.flatnonzero(found).tolist()) == discoveries_by_definition(p_values, alpha)


def test_a_p_value_above_alpha_is_never_a_discovery():
    # Nine clear ones leave one true hypothesis, whose level would rise to 0.048 * 10 / 1.
    assert find_discoveries([1e-6] * 9 + [0.06]).tolist() == [True] * 9 + [False]
    assert find_discoveries([1e-6] * 9 + [0.049]).all()
    assert find_discoveries([]).shape == (0,)


def test_the_next_discovery_needs_a_p_value_that_grows_with_those_found():
    assert next_level(np.array([False] * 10)) == pytest.approx(0.05 / 1.05 / 10)
    assert next_level(np.array([True] * 9 + [False])) == 0.05


def test_the_seeds_needed_are_those_that_find_the_difference_in_80_of_100_simulations():
    needed = count_seeds_needed((0.02, 0.03), distance=0.03, level=0.025)
    random = np.random.default_rng(8)

    def measure_power(seeds):
        left = random.normal(0.03, 0.02, size=(20_000, seeds))
        right = random.normal(0.0, 0.03, size=(20_000, seeds))
        return (stats.ttest_ind(left, right, axis=1, equal_var=False).pvalue <= 0.05).mean()

    assert measure_power(needed) > 0.78
    assert measure_power(needed - 2) < 0.8


def test_more_seeds_than_anyone_runs_are_not_counted():
    assert count_seeds_needed((0.5, 0.5), distance=0.001, level=0.025) is None
    assert count_seeds_needed((0.0, 0.0), distance=0.001, level=0.025) == 2
    assert MOST_SEEDS == 1000
    with pytest.raises(ValueError, match=r"distance > 0.*Got"):
        count_seeds_needed((0.1, 0.1), distance=0.0, level=0.025)


def test_the_interval_of_a_share_stays_within_0_and_1():
    # Two seeds: mean 0.99, error 0.01, t = 12.71, so the bare interval is 0.863 to 1.117.
    assert estimate_interval([0.98, 1.0], is_share=True) == (pytest.approx(0.863, abs=1e-3), 1.0)
    low, high = estimate_interval([0.98, 1.0], is_share=False)
    assert (low, high) == (pytest.approx(0.863, abs=1e-3), pytest.approx(1.117, abs=1e-3))
