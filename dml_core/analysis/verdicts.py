"""Compares every pair of arms by one rule, so that no verdict depends on a choice of baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Literal

import numpy as np
import numpy.typing as npt

from dml_core.analysis.estimates import (
    ArmMeans,
    Contrasts,
    FloatArray,
    Interval,
    check_finite,
    count_seeds_needed,
    find_discoveries,
    next_level,
)

Scores = Mapping[int, float]
"""An arm's score for each seed."""
Verdict = Literal["better", "worse", "no difference", "cannot tell"]
SAME, OPEN = 0, 2
"""Codes of `decide` beside the signs of differences."""
_VERDICTS: dict[int, Verdict] = {
    1: "better",
    -1: "worse",
    SAME: "no difference",
    OPEN: "cannot tell",
}
_OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}

SMALLEST_EFFECT = 0.01
"""A difference worth having, by default: one point of a share."""
SMALLEST_SHARE = 0.02
"""The smallest difference worth having of a metric that is no share (a cost, a distance), relative
to its mean over all arms."""
POCOCK_LEVELS = (0.05, 0.0294, 0.0221, 0.0182, 0.0158, 0.0142, 0.0130, 0.0120, 0.0112, 0.0106)
"""The level of each of 1, 2, 3 ... looks at growing data that keeps the error over all of them at
5 % (Pocock, 1977). docs/statistics.md checks it for our procedure."""


def find_level(num_looks: int) -> float:
    """Returns the level at which each of so many looks is judged."""
    return POCOCK_LEVELS[min(num_looks, len(POCOCK_LEVELS)) - 1]


def relative_effect(scores_by_arm: Mapping[str, Scores]) -> float:
    """Returns the smallest difference worth having of a metric that is no share."""
    means = [fmean(scores.values()) for scores in scores_by_arm.values() if scores]
    return SMALLEST_SHARE * abs(fmean(means)) if means and fmean(means) else SMALLEST_SHARE


@dataclass(frozen=True)
class Comparison:
    """One arm minus another, and what that says."""

    left: str
    right: str
    difference: float | None
    """Of the means; None where an arm has no score."""
    interval: Interval | None
    """95 %, of this pair alone; None where an arm has fewer than two seeds."""
    chance_better: float | None
    """How likely `left` is truly better than `right`."""
    verdict: Verdict
    """Of `left` compared with `right`."""
    seeds_needed: int | None = None
    """About how many seeds an arm would decide a pair that is open, for the difference seen."""
    reason: str = ""
    """Why there is no verdict, where that is not a lack of seeds."""

    def reversed(self) -> "Comparison":
        """Returns the same comparison seen from the other arm."""
        return replace(
            self,
            left=self.right,
            right=self.left,
            difference=None if self.difference is None else -self.difference,
            interval=None if self.interval is None else (-self.interval[1], -self.interval[0]),
            chance_better=None if self.chance_better is None else 1 - self.chance_better,
            verdict=_OPPOSITE.get(self.verdict, self.verdict),
        )


class Comparisons:
    """The comparisons of all pairs of a study's arms."""

    def __init__(self, pairs: Mapping[tuple[str, str], Comparison]) -> None:
        self._pairs = dict(pairs)

    def __getitem__(self, arms: tuple[str, str]) -> Comparison:
        """Returns the comparison of the first arm with the second."""
        left, right = arms
        if (left, right) in self._pairs:
            return self._pairs[left, right]
        return self._pairs[right, left].reversed()

    def __len__(self) -> int:
        return len(self._pairs)

    def of(self, arm: str, others: Sequence[str]) -> list[Comparison]:
        """Returns the comparisons of one arm with each of the others but itself."""
        return [self[arm, other] for other in others if other != arm]


def compare_arms(
    scores_by_arm: Mapping[str, Scores],
    *,
    smallest_effect: float = SMALLEST_EFFECT,
    higher_is_better: bool = True,
    num_looks: int = 1,
) -> Comparisons:
    """Compares every pair of arms.

    Each pair is tested by Welch's t-test. An arm is better or worse where the test is among the
    discoveries of all pairs (at most 5 % of them false, and any at all in at most 5 % of studies
    in which nothing differs). There is no difference worth having where two one-sided tests place
    it within +-smallest_effect, again among the discoveries of all pairs; this comes first, since
    a difference may be certain and still too small to matter.

    Args:
        scores_by_arm: for each arm the score of each seed; an arm without scores may be empty.
        smallest_effect: the smallest difference worth having, above 0.
        higher_is_better: False for distances and costs.
        num_looks: how often the growing results were judged, this time included; every look is
            judged at a stricter level, so that all of them together keep the error rate.

    Raises:
        ValueError: for a score that is not finite.
    """
    samples = {arm: list(scores.values()) for arm, scores in scores_by_arm.items()}
    for values in samples.values():
        check_finite(np.array(values, dtype=np.float64))
    alpha = find_level(num_looks)
    pairs = {pair: _describe_untested(pair, samples) for pair in combinations(samples, 2)}
    tested = [arm for arm, values in samples.items() if len(values) > 1]
    if len(tested) > 1:
        means = ArmMeans.of([scores_by_arm[arm] for arm in tested])
        found = means.contrast(pair_weights(len(tested)))
        rule = Rule(smallest_effect, alpha, sign=1.0 if higher_is_better else -1.0)
        for pair, comparison in zip(
            combinations(tested, 2), _judge(tested, means, found, rule), strict=True
        ):
            pairs[pair] = comparison
    return Comparisons(pairs)


def pair_weights(num_arms: int) -> FloatArray:
    """Returns (K, A) weights for the differences of all pairs, in the order of `combinations`."""
    pairs = list(combinations(range(num_arms), 2))
    weights = np.zeros((len(pairs), num_arms))
    for row, (left, right) in enumerate(pairs):
        weights[row, left], weights[row, right] = 1.0, -1.0
    return weights


@dataclass(frozen=True)
class Rule:
    """By what a difference is judged."""

    smallest_effect: float
    alpha: float
    sign: float
    """-1 where less is better."""


def decide(found: Contrasts, *, smallest_effect: float, alpha: float) -> npt.NDArray[np.int64]:
    """Returns 1, -1, 0 or 2 for contrasts above zero, below zero, too small to matter, and open.

    Args:
        found: (..., K) with the tests of a family along the last axis.
        smallest_effect: as in `compare_arms`.
        alpha: the largest expected share of false verdicts of either kind.
    """
    differs = find_discoveries(found.p_differs, alpha=alpha)
    within = find_discoveries(found.p_within(smallest_effect), alpha=alpha)
    codes = np.where(differs, np.sign(found.value).astype(np.int64), OPEN)
    return np.where(within, SAME, codes)


def _judge(arms: Sequence[str], means: ArmMeans, found: Contrasts, rule: Rule) -> list[Comparison]:
    codes = decide(found, smallest_effect=rule.smallest_effect, alpha=rule.alpha)
    lows, highs = found.interval()
    chances = found.chance_above_zero
    needed = _count_needed(means, found, codes, rule)
    comparisons = []
    for row, pair in enumerate(combinations(arms, 2)):
        code = int(codes[row])
        verdict: Verdict = _VERDICTS[code if code in (OPEN, SAME) else code * int(rule.sign)]
        chance = float(chances[row])
        has_spread = bool(found.error[row] > 0)
        comparisons.append(
            Comparison(
                *pair,
                difference=float(found.value[row]),
                interval=(float(lows[row]), float(highs[row])) if has_spread else None,
                chance_better=chance if rule.sign > 0 else 1 - chance,
                verdict=verdict,
                seeds_needed=needed.get(row),
                reason="" if has_spread else "every seed gave the same, so the spread is unknown",
            )
        )
    return comparisons


def _describe_untested(pair: tuple[str, str], samples: Mapping[str, Sequence[float]]) -> Comparison:
    left, right = (samples[arm] for arm in pair)
    missing = [arm for arm in pair if not samples[arm]]
    difference = float(np.mean(left) - np.mean(right)) if not missing else None
    reason = (
        f"{missing[0]} has no score"
        if missing
        else "one seed has no spread; two or more are needed"
    )
    return Comparison(*pair, difference, None, None, "cannot tell", reason=reason)


def _count_needed(
    means: ArmMeans, found: Contrasts, codes: npt.NDArray[np.int64], rule: Rule
) -> dict[int, int]:
    """Returns by row the seeds that show the difference seen, or that it is too small to matter."""
    differ_level = next_level(np.abs(codes) == 1, alpha=rule.alpha)
    within_level = next_level(codes == SAME, alpha=rule.alpha)
    deviations = np.sqrt(means.variance)
    needed = {}
    for row, (left, right) in enumerate(combinations(range(len(deviations)), 2)):
        if codes[row] != OPEN or found.error[row] == 0:
            continue
        size = abs(float(found.value[row]))
        # The level of the two-sided test is split between its directions.
        options = [(size, differ_level / 2), (rule.smallest_effect - size, within_level)]
        counts = [
            count_seeds_needed(
                (float(deviations[left]), float(deviations[right])), distance=distance, level=level
            )
            for distance, level in options
            if distance > 0
        ]
        known = [count for count in counts if count is not None]
        # An unlucky pair may have enough seeds by this count; one more is the least that helps.
        least = int(max(means.count[left], means.count[right])) + 1
        if known:
            needed[row] = max(min(known), least)
    return needed
