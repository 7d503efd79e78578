"""Means, differences of means and false discoveries: the estimates that every verdict uses.

A difference is a contrast of arms' means by Welch's method: each arm keeps its own variance, and
Satterthwaite's formula gives the degrees of freedom. docs/statistics.md shows by simulation why.
"""

# S = seeds; leading dimensions are independent samples.

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Interval = tuple[float, float]

# Scores are sums of some thousand float32 numbers: a spread below this is rounding.
_ROUNDING = 1e-9

MOST_SEEDS = 1_000
"""Larger numbers are not searched for: no one runs that many."""


@dataclass(frozen=True)
class MeanEstimate:
    """Means of samples, each with an interval for its true value."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray
    deviation: FloatArray
    """Standard deviation within each sample (n - 1); exactly 0 where it is only rounding."""
    p_value: FloatArray
    """Two-sided probability of a mean at least this far from 0 if the true mean is 0; 1 where the
    deviation is 0, since then the spread is unknown."""


def estimate_mean(values: npt.ArrayLike, *, confidence: float = 0.95) -> MeanEstimate:
    """Returns mean, t-interval and p-value along the last axis.

    Args:
        values: (..., S) finite values with S >= 2.
        confidence: how often the interval covers the true mean if values are normal.

    Raises:
        ValueError: for fewer than two values, or a value that is not finite.
    """
    # scipy.stats computes with these functions too, and takes a second to import.
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
    deviation = _measure_deviation(sample)
    error = deviation / np.sqrt(count)
    reach = special.stdtrit(count - 1, 0.5 + confidence / 2) * error
    ratio = np.abs(mean) / np.where(error > 0, error, np.inf)
    p_value = 2 * special.stdtr(count - 1, -ratio)
    return MeanEstimate(mean, mean - reach, mean + reach, deviation, p_value)


def estimate_interval(values: Sequence[float], *, is_share: bool) -> Interval:
    """Returns the 95 % interval of a mean.

    That of a share stays within 0 and 1: its true value does too, so nothing of the coverage is
    lost, and no reader meets a recall of 110 %.
    """
    estimate = estimate_mean(values)
    low, high = float(estimate.low), float(estimate.high)
    return (max(low, 0.0), min(high, 1.0)) if is_share else (low, high)


def compute_mean(values: Iterable[float]) -> float:
    """Returns the mean with the rounding of `estimate_mean`, so that all places show one number."""
    return float(np.mean(np.fromiter(values, dtype=np.float64)))


def check_finite(values: FloatArray) -> None:
    """Raises ValueError where a value is NaN or infinite."""
    if not np.isfinite(values).all():
        found = float(values[~np.isfinite(values)].flat[0])
        raise ValueError(
            f"scores must be finite, or their mean has no meaning. Got {found}. "
            "Leave out the seeds that have no score."
        )


@dataclass(frozen=True)
class Contrasts:
    """Weighted sums of arms' means, such as one mean minus another; arrays of equal shape."""

    value: FloatArray
    error: FloatArray
    """Standard error; 0 where every seed of every arm gave the same score."""
    freedom: FloatArray
    """Degrees of freedom of Student's t; infinite where the error is 0."""

    def interval(self, *, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Returns the ends of the intervals that cover the true values this often."""
        from scipy import special

        reach = special.stdtrit(self.freedom, 0.5 + confidence / 2) * self.error
        return self.value - reach, self.value + reach

    @property
    def p_differs(self) -> FloatArray:
        """P-values of two-sided tests that the true value is not 0; 1 without a spread."""
        return np.where(self.error > 0, 2 * self._tail(-np.abs(self.value)), 1.0)

    def p_within(self, limit: float) -> FloatArray:
        """Returns p-values of two one-sided tests that the true value is within +-limit.

        Without a spread there is nothing to test, and the p-value is 1.
        """
        return np.where(self.error > 0, self._tail(np.abs(self.value) - limit), 1.0)

    @property
    def chance_above_zero(self) -> FloatArray:
        """How likely the true value is above 0, if nothing was known of it before."""
        certain = 0.5 + 0.5 * np.sign(self.value)
        return np.where(self.error > 0, self._tail(self.value), certain)

    def _tail(self, distance: FloatArray) -> FloatArray:
        """Probability of Student's t below a distance in units of the error."""
        from scipy import special

        below: FloatArray = special.stdtr(
            self.freedom, distance / np.where(self.error > 0, self.error, 1.0)
        )
        return below


@dataclass(frozen=True)
class ArmMeans:
    """Mean, variance and number of seeds of each arm: (..., A) arrays."""

    mean: FloatArray
    variance: FloatArray
    """With n - 1; exactly 0 where it is only rounding."""
    count: FloatArray

    @classmethod
    def of(cls, scores_by_arm: Sequence[Mapping[int, float]]) -> "ArmMeans":
        """Returns those of arms with two or more scores each, by seed; seeds may differ."""
        seeds = sorted({seed for scores in scores_by_arm for seed in scores})
        table = [[scores.get(seed, np.nan) for seed in seeds] for scores in scores_by_arm]
        return cls.of_table(np.array(table, dtype=np.float64))

    @classmethod
    def of_table(cls, scores: FloatArray) -> "ArmMeans":
        """Returns those of (..., A, S) scores, with NaN where an arm lacks a seed.

        A seed shifts all arms alike (it decides the order of images, say), which says nothing of
        their differences. So the shift of each seed that six or more arms share is estimated, each
        arm weighted by its precision, and taken out of the variances. The means stay as they are.
        """
        is_there = np.isfinite(scores)
        count = is_there.sum(axis=-1).astype(np.float64)
        mean = np.where(is_there, scores, 0.0).sum(axis=-1) / count
        residual = np.where(is_there, scores - mean[..., None], 0.0)
        largest = np.abs(np.where(is_there, scores, 0.0)).max(axis=-1)
        shift, weight = _estimate_shifts(residual, is_there, count)
        left = residual - np.where(is_there, shift, 0.0)
        variance = (left**2).sum(axis=-1) / (count - 1) / (1 - weight)
        # An arm whose own scores do not spread has no variance, whatever the other arms do.
        own = np.sqrt((residual**2).sum(axis=-1) / (count - 1))
        return cls(mean, np.where(own <= _ROUNDING * largest, 0.0, variance), count)

    def contrast(self, weights: npt.ArrayLike) -> Contrasts:
        """Returns weighted sums of the means by Welch's method.

        Each arm keeps its own variance; the degrees of freedom are Satterthwaite's.

        Args:
            weights: (K, A), a row for each contrast; +1 and -1 give the difference of two means.
        """
        rows = np.atleast_2d(np.asarray(weights, dtype=np.float64))
        squared = rows**2
        part = self.variance / self.count
        variance = part @ squared.T
        spread = (part**2 / (self.count - 1)) @ (squared**2).T
        freedom = np.divide(
            variance**2, spread, out=np.full(variance.shape, np.inf), where=spread > 0
        )
        return Contrasts(self.mean @ rows.T, np.sqrt(variance), freedom)


_MIN_ARMS = 6
"""With fewer arms, taking out the shifts of seeds costs more than it gains (docs/statistics.md)."""


def _estimate_shifts(
    residual: FloatArray, is_there: npt.NDArray[np.bool_], count: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns by how much each seed shifts each arm, and the weight of the arm in that.

    The shifts (..., A, S) of an arm sum to zero. The weight (..., A) is the share of an arm's own
    noise in the shifts, by which its variance would be taken for too small.
    """
    variance = (residual**2).sum(axis=-1) / (count - 1)
    # An arm whose seeds agree by luck must not decide alone.
    floor = np.median(variance, axis=-1, keepdims=True)
    precision = np.where(floor > 0, 1 / np.where(floor > 0, np.maximum(variance, floor), 1.0), 0.0)
    shares = np.where(is_there, precision[..., None], 0.0)
    total = shares.sum(axis=-2, keepdims=True)
    is_shared = (is_there.sum(axis=-2, keepdims=True) >= _MIN_ARMS) & (total > 0)
    shares = np.where(is_shared, shares / np.where(total > 0, total, 1.0), 0.0)
    by_seed = (shares * residual).sum(axis=-2, keepdims=True)
    each = np.where(is_there, by_seed, 0.0)
    centered = each - each.sum(axis=-1, keepdims=True) / count[..., None]
    return centered, shares.sum(axis=-1) / count


def find_discoveries(p_values: npt.ArrayLike, *, alpha: float = 0.05) -> npt.NDArray[np.bool_]:
    """Returns which tests of a family are discoveries, with false ones at most alpha of them.

    The adaptive two-stage procedure of Benjamini, Krieger and Yekutieli (2006): a first pass of
    Benjamini and Hochberg's method estimates how many hypotheses are true, and a second pass uses
    that number. Where no hypothesis is false, any discovery is made in at most alpha of families.
    A test whose own p-value is above alpha is never a discovery, so that a verdict and the interval
    beside it agree.

    Args:
        p_values: (..., K) with the tests of a family along the last axis.
        alpha: the largest expected share of false discoveries.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    if raw.shape[-1] == 0:
        return np.zeros(raw.shape, dtype=bool)
    level = alpha / (1 + alpha)
    first = _step_up(raw, np.full(raw.shape[:-1], level))
    num_true = raw.shape[-1] - first.sum(axis=-1)
    factor = raw.shape[-1] / np.maximum(num_true, 1)
    second = _step_up(raw, level * factor) & (raw <= alpha)
    found: npt.NDArray[np.bool_] = np.where(first.any(axis=-1, keepdims=True), second, first)
    return found


def _step_up(p_values: FloatArray, level: FloatArray) -> npt.NDArray[np.bool_]:
    """Benjamini and Hochberg's method: the largest k with p(k) <= k / K * level sets the limit."""
    count = p_values.shape[-1]
    ordered = np.sort(p_values, axis=-1)
    passes = ordered <= level[..., None] * np.arange(1, count + 1) / count
    limit = np.where(passes, ordered, -1.0).max(axis=-1, keepdims=True)
    is_found: npt.NDArray[np.bool_] = p_values <= limit
    return is_found


def next_level(is_found: npt.NDArray[np.bool_], *, alpha: float = 0.05) -> float:
    """Returns the p-value that one more test of a family needs to become a discovery."""
    count, found = is_found.size, int(is_found.sum())
    level = alpha / (1 + alpha)
    return min(level * (found + 1) / max(count - found, 1), alpha) if count else alpha


def count_seeds_needed(
    deviations: tuple[float, float], *, distance: float, level: float, power: float = 0.8
) -> int | None:
    """Returns the fewest seeds an arm with which Welch's test detects a distance.

    Args:
        deviations: standard deviations of the two arms. Estimated from few seeds they are rough,
            and so is the result.
        distance: how far the difference is from the limit that it is tested against, above 0.
        level: the one-sided p-value that the test must reach.
        power: how often it should.

    Returns:
        At least 2; None where more than MOST_SEEDS are needed.
    """
    if not (min(deviations) >= 0 and distance > 0 and 0 < level < 1 and 0 < power < 1):
        raise ValueError(
            "deviations must be >= 0, distance > 0, level and power between 0 and 1. "
            f"Got {deviations}, {distance}, {level} and {power}."
        )
    low, high = 1, 2
    while not _is_enough(high, deviations, distance, level, power):
        if high >= MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_enough(middle, deviations, distance, level, power):
            high = middle
        else:
            low = middle
    return high


def _is_enough(
    num_seeds: int, deviations: tuple[float, float], distance: float, level: float, power: float
) -> bool:
    from scipy import special

    first, second = (deviation**2 / num_seeds for deviation in deviations)
    if first + second == 0:
        return True
    freedom = (num_seeds - 1) * (first + second) ** 2 / (first**2 + second**2)
    quantiles = special.stdtrit(freedom, 1 - level) + special.stdtrit(freedom, power)
    return bool(distance / math.sqrt(first + second) >= quantiles)


def _measure_deviation(sample: FloatArray) -> FloatArray:
    deviation = sample.std(axis=-1, ddof=1)
    largest = np.abs(sample).max(axis=-1)
    return np.where(deviation <= _ROUNDING * largest, 0.0, deviation)
