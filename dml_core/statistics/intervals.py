"""Intervals and p-values of a mean by Student's t, for one sample or many at once."""

# S = seeds; the leading dimensions are samples of their own.

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Scores are sums of some thousand float32 numbers: a spread below this is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MeanEstimate:
    """Means of samples, each with what is known about its true value."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray
    deviation: FloatArray
    """Standard deviation within each sample (n - 1); exactly 0 where it is only rounding."""
    p_value: FloatArray
    """Two-sided chance of a mean at least so far from 0 if the true one is 0; 1 where the
    deviation is 0, since then nothing is known of the spread."""


def estimate_mean(values: npt.ArrayLike, *, confidence: float = 0.95) -> MeanEstimate:
    """Returns mean, t-interval and p-value along the last axis.

    Args:
        values: (..., S) finite values with S >= 2.
        confidence: how often the interval holds the true mean, if values are normal.

    Raises:
        ValueError: for fewer than two values, or one that is not finite.
    """
    # What scipy.stats computes by too, which takes a second to import.
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
    """Raises ValueError where a value is NaN or infinite."""
    if not np.isfinite(values).all():
        found = float(values[~np.isfinite(values)].flat[0])
        raise ValueError(
            f"scores must be finite, or means of them say nothing. Got {found}. "
            "Leave out the seeds that have no score."
        )


def adjust_holm(p_values: npt.ArrayLike) -> FloatArray:
    """Returns p-values adjusted for being several, by Holm's step-down method.

    Rejecting those at most 0.05 gives a false rejection anywhere in the family in at most 5 % of
    families, however the tests depend on each other. (Holm, 1979.)

    Args:
        p_values: (..., K) with the tests of a family along the last axis.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, axis=-1, kind="stable")
    factors = np.arange(raw.shape[-1], 0, -1)
    stepped = np.maximum.accumulate(np.take_along_axis(raw, order, -1) * factors, axis=-1)
    adjusted = np.empty_like(raw)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), -1)
    return adjusted
