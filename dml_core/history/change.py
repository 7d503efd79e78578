"""Says whether a result is better or worse than an earlier one of the same study and data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dml_core.statistics.intervals import adjust_holm
from dml_core.statistics.summary import Difference, compare

ALPHA = 0.05
Scores = Mapping[str, Mapping[int, float]]
"""By arm and seed."""
Verdict = Literal["gain", "drop", "no change"]


@dataclass(frozen=True)
class Change:
    """A result less the accepted one, seed by seed; above zero is better whatever the metric."""

    champion: Difference
    """Of the arms that the two results would ship, which may be two different ones."""
    arms: dict[str, Difference]
    """Of each arm that both results have, against itself, adjusted for being several."""

    @property
    def worse_arms(self) -> list[str]:
        """Arms that dropped, also among all arms (paired t-test, Holm's correction)."""
        return [arm for arm, found in self.arms.items() if _is_below(found)]

    @property
    def verdict(self) -> Verdict:
        """drop: the champion's interval lies below zero, or an arm dropped among all arms.

        gain: the champion's interval lies above zero, and nothing dropped.
        """
        low, high = self.champion.interval or (0.0, 0.0)
        if high < 0 or self.worse_arms:
            return "drop"
        return "gain" if low > 0 else "no change"


def measure_change(
    accepted: Scores,
    found: Scores,
    *,
    accepted_champion: str,
    champion: str,
    higher_is_better: bool,
) -> Change:
    """Returns how a result differs from the accepted one, on the seeds that both have.

    Args:
        accepted: scores of the accepted result.
        found: scores of the new one.
        accepted_champion: the arm that the accepted result ships.
        champion: the arm that the new one would ship.
        higher_is_better: False for distances and costs.
    """
    sign = 1.0 if higher_is_better else -1.0

    def differ(new: str, old: str) -> Difference:
        return compare(
            _times(found.get(new, {}), sign), _times(accepted.get(old, {}), sign), reference=old
        )

    arms = {arm: differ(arm, arm) for arm in found if arm in accepted}
    return Change(differ(champion, accepted_champion), _adjust(arms))


def _times(scores: Mapping[int, float], sign: float) -> dict[int, float]:
    return {seed: sign * value for seed, value in scores.items()}


def _adjust(arms: dict[str, Difference]) -> dict[str, Difference]:
    tested = [arm for arm, found in arms.items() if found.p_value is not None]
    adjusted = adjust_holm([arms[arm].p_value or 0.0 for arm in tested])
    p_values = dict(zip(tested, adjusted.tolist(), strict=True))
    return {arm: replace(d, adjusted_p_value=p_values.get(arm)) for arm, d in arms.items()}


def _is_below(found: Difference) -> bool:
    p_value, mean = found.adjusted_p_value, found.mean
    return p_value is not None and p_value <= ALPHA and mean is not None and mean < 0
