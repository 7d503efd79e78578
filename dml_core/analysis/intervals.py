"""Student's t intervals and p-values of a mean, and the number of seeds for a given power."""

# S = seeds; leading dimensions are independent samples.

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Scores are sums of thousands of float32 numbers: a relative spread below this is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MeanEstimate:
    """Sample means with their intervals and p-values."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray
    deviation: FloatArray
    """Standard deviation of each sample (n - 1); exactly 0 if it is only rounding."""
    p_value: FloatArray
    """Two-sided p-value for a true mean of 0; 1 if the deviation is 0, since the spread is then
    unknown."""


def estimate_mean(values: npt.ArrayLike, *, confidence: float = 0.95) -> MeanEstimate:
    """Returns mean, t-interval and p-value along the last axis.

    Args:
        values: (..., S) finite values with S >= 2.
        confidence: coverage of the interval, if values are normal.

    Raises:
        ValueError: for fewer than two values, or a value that is not finite.
    """
    # scipy.stats uses the same functions but takes a second to import.
    from scipy import special

    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim == 0 or sample.shape[-1] < 2:
        raise ValueError(
            "an interval needs at least two values, since one has no spread. "
            f"Got shape {sample.shape}. Run more seeds."
        )
    check_finite(sample)
    count = sample.shape[-1]
    mean = sample.mean(axis=-1)
    deviation = sample.std(axis=-1, ddof=1)
    deviation = np.where(deviation <= _ROUNDING * np.abs(sample).max(axis=-1), 0.0, deviation)
    error = deviation / np.sqrt(count)
    reach = special.stdtrit(count - 1, 0.5 + confidence / 2) * error
    ratio = np.abs(mean) / np.where(error > 0, error, np.inf)
    p_value = 2 * special.stdtr(count - 1, -ratio)
    return MeanEstimate(mean, mean - reach, mean + reach, deviation, p_value)


def check_finite(values: FloatArray) -> None:
    """Raises ValueError if a value is NaN or infinite."""
    if not np.isfinite(values).all():
        found = float(values[~np.isfinite(values)].flat[0])
        raise ValueError(
            f"scores must be finite, or their mean is undefined. Got {found}. "
            "Leave out the seeds that have no score."
        )


def adjust_holm(p_values: npt.ArrayLike) -> FloatArray:
    """Returns p-values adjusted for multiple testing by Holm's step-down method (Holm, 1979).

    Rejecting those at most 0.05 bounds the family-wise error rate by 5 %, for any dependence of
    the tests.

    Args:
        p_values: (..., K) p-values of a family along the last axis.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, axis=-1, kind="stable")
    factors = np.arange(raw.shape[-1], 0, -1)
    stepped = np.maximum.accumulate(np.take_along_axis(raw, order, -1) * factors, axis=-1)
    adjusted = np.empty_like(raw)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), -1)
    return adjusted


MOST_SEEDS = 10_000
"""Largest number of seeds that is searched."""


def compute_power(
    num_seeds: int, *, deviation: float, difference: float, alpha: float = 0.05
) -> float:
    """Returns the power of a two-sided paired t-test for a true difference.

    Args:
        num_seeds: pairs, at least 2.
        deviation: standard deviation of the paired differences, above 0.
        difference: the true mean difference.
        alpha: significance level.
    """
    from scipy import stats

    freedom = num_seeds - 1
    shift = abs(difference) * math.sqrt(num_seeds) / deviation
    threshold = float(stats.t.isf(alpha / 2, freedom))
    # Far beyond the threshold scipy's noncentral t is NaN, and the power is 1.
    if shift > threshold + 10 and shift > 2 * threshold:
        return 1.0
    found = float(stats.nct.sf(threshold, freedom, shift))
    # Rejections with the wrong sign; for larger shifts below one in a million, or NaN.
    if shift < 5:
        found += float(stats.nct.cdf(-threshold, freedom, shift))
    return min(max(found, 0.0), 1.0)


def count_seeds_needed(
    *, deviation: float, difference: float, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Returns the fewest seeds with which a paired t-test reaches a power.

    Args:
        deviation: standard deviation of the paired differences; an estimate from few seeds is
            rough, and so is the result.
        difference: the true difference to detect, above 0.
        alpha: two-sided significance level.
        power: the power to reach.

    Returns:
        At least 2; None if more than MOST_SEEDS are needed.
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
