"""How many seeds it takes to tell a difference of a given size from none."""

import math

MOST_SEEDS = 10_000
"""Larger numbers are not searched for: nobody runs so many."""


def compute_power(
    num_seeds: int, *, deviation: float, difference: float, alpha: float = 0.05
) -> float:
    """Returns how often a two-sided paired t-test finds a true difference.

    Args:
        num_seeds: pairs, at least 2.
        deviation: standard deviation of the paired differences, above 0.
        difference: the true mean difference.
        alpha: chance of a false finding that is allowed.
    """
    from scipy import stats

    freedom = num_seeds - 1
    shift = abs(difference) * math.sqrt(num_seeds) / deviation
    threshold = float(stats.t.isf(alpha / 2, freedom))
    # Far beyond the threshold scipy's noncentral t gives NaN, and the power is 1.
    if shift > threshold + 10 and shift > 2 * threshold:
        return 1.0
    found = float(stats.nct.sf(threshold, freedom, shift))
    # Findings of the wrong sign: for larger shifts fewer than one in a million, or NaN.
    if shift < 5:
        found += float(stats.nct.cdf(-threshold, freedom, shift))
    return min(max(found, 0.0), 1.0)


def count_seeds_needed(
    *, deviation: float, difference: float, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Returns the fewest seeds with which a paired t-test finds a true difference often enough.

    Args:
        deviation: standard deviation of the paired differences; estimated from few seeds it is
            rough itself, and so is the answer.
        difference: the difference to be found, above 0.
        alpha: chance of a false finding that is allowed, two-sided.
        power: how often the difference should be found.

    Returns:
        At least 2; None where more than MOST_SEEDS are needed.
    """
    if not (deviation >= 0 and difference > 0 and 0 < alpha < 1 and 0 < power < 1):
        raise ValueError(
            "deviation must be >= 0, difference > 0, alpha and power between 0 and 1. "
            f"Got {deviation}, {difference}, {alpha} and {power}."
        )
    low, high = 1, 2
    while not _is_enough(high, deviation, difference, alpha, power):
        if high >= MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_enough(middle, deviation, difference, alpha, power):
            high = middle
        else:
            low = middle
    return high


def _is_enough(
    num_seeds: int, deviation: float, difference: float, alpha: float, power: float
) -> bool:
    if deviation == 0:
        return True
    reached = compute_power(num_seeds, deviation=deviation, difference=difference, alpha=alpha)
    return reached >= power
