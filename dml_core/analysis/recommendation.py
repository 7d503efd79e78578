"""Which arm to use: every arm compared with the best one, without a choice of baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dml_core.analysis.estimates import (
    ArmMeans,
    Interval,
    compute_mean,
    estimate_interval,
    estimate_mean,
    find_discoveries,
)
from dml_core.analysis.verdicts import Comparisons, Scores, find_level, pair_weights
from dml_core.studies.metrics import Unit

Kind = Literal["use", "any", "open", "do not train", "nothing"]


@dataclass(frozen=True)
class Untrained:
    """What no training gives: the score that an arm must beat to be worth its training."""

    name: str
    """Such as `bare features` or `pixels`."""
    score: float


@dataclass(frozen=True)
class Recommendation:
    """The answer to "which arm should I use?"."""

    kind: Kind
    """use: one arm. any: one of several that do not differ enough to matter. open: the best so far,
    others cannot be told from it yet. do not train: no arm beats the untrained network. nothing: no
    arm has a score."""
    best: str
    """The arm with the best mean; empty without scores."""
    equals: tuple[str, ...]
    """Arms without a difference worth having to the best."""
    undecided: tuple[str, ...]
    """Arms that cannot be told from the best yet."""
    lead: float | None
    """Of the best over the next, in the metric's own direction; None with one arm."""
    interval: Interval | None
    """95 % interval of the lead, valid though the best arm was chosen by the same scores."""
    seeds_needed: int | None
    """Seeds an arm that would decide all that is undecided; None where unknown."""
    text: str
    """One or two plain sentences."""


def lead_confidence(num_arms: int) -> float:
    """Returns the confidence of each pair's interval that gives 95 % for the best arm's lead.

    The lead is the smallest difference to any other arm, so all of their intervals count
    (Bonferroni). docs/statistics.md has its coverage by simulation.
    """
    return 1 - 0.05 / max(num_arms - 1, 1)


def find_beaten(
    scores_by_arm: Mapping[str, Scores],
    untrained: float,
    *,
    higher_is_better: bool,
    num_looks: int = 1,
) -> dict[str, bool | None]:
    """Returns for each arm whether it beats the untrained score; None where that is open.

    An arm beats it, or does not, where a t-test of its seeds is among the discoveries of all arms.
    """
    sign = 1.0 if higher_is_better else -1.0
    tested = {arm: list(s.values()) for arm, s in scores_by_arm.items() if len(s) > 1}
    estimates = {
        arm: estimate_mean([sign * (value - untrained) for value in values])
        for arm, values in tested.items()
    }
    p_values = [float(each.p_value) for each in estimates.values()]
    found = find_discoveries(p_values, alpha=find_level(num_looks))
    beaten: dict[str, bool | None] = dict.fromkeys(scores_by_arm)
    for (arm, estimate), is_found in zip(estimates.items(), found, strict=True):
        if is_found:
            beaten[arm] = bool(estimate.mean > 0)
    return beaten


def estimate_arms(
    scores_by_arm: Mapping[str, Scores], *, higher_is_better: bool = True, is_share: bool = False
) -> dict[str, dict[str, float]]:
    """Returns the numbers that belong beside each arm's mean, for arms with two or more seeds.

    `low` and `high` bound the mean's 95 % interval. `p_better` is the probability that the arm is
    truly better than the best of the others; a single arm has none.
    """
    tested = {arm: scores for arm, scores in scores_by_arm.items() if len(scores) > 1}
    found: dict[str, dict[str, float]] = {}
    for arm, scores in tested.items():
        low, high = estimate_interval(list(scores.values()), is_share=is_share)
        found[arm] = {"low": low, "high": high}
    if len(tested) < 2:
        return found
    means = ArmMeans.of(list(tested.values()))
    best, second = np.argsort(means.mean if not higher_is_better else -means.mean)[:2]
    weights = np.eye(len(tested))
    weights[:, best] -= 1.0
    weights[best] = 0.0
    weights[best, [best, second]] = 1.0, -1.0
    chances = means.contrast(weights).chance_above_zero
    for arm, chance in zip(found, chances, strict=True):
        found[arm]["p_better"] = float(chance if higher_is_better else 1 - chance)
    return found


def recommend(
    scores_by_arm: Mapping[str, Scores],
    comparisons: Comparisons,
    *,
    metric: str,
    unit: Unit,
    smallest_effect: float,
    higher_is_better: bool = True,
    untrained: Untrained | None = None,
    num_looks: int = 1,
    remedy: str = "",
) -> Recommendation:
    """Returns which arm to use.

    Args:
        scores_by_arm: for each arm the score of each seed.
        comparisons: of all pairs of these arms.
        metric: name of the score, for the sentence.
        unit: how scores are shown.
        smallest_effect: the smallest difference worth having.
        higher_is_better: False for distances and costs.
        untrained: what no training gives, where it is known.
        num_looks: how often the growing results are judged in all.
        remedy: how to add seeds.
    """
    means = {arm: compute_mean(s.values()) for arm, s in scores_by_arm.items() if s}
    if not means:
        text = "No arm has a score, so there is nothing to recommend."
        return Recommendation("nothing", "", (), (), None, None, None, text)
    order = sorted(means, key=lambda arm: means[arm], reverse=higher_is_better)
    best, others = order[0], order[1:]
    against = {each.right: each for each in comparisons.of(best, others)}
    equals = tuple(arm for arm in others if against[arm].verdict == "no difference")
    undecided = tuple(arm for arm in others if against[arm].verdict == "cannot tell")
    needed = [against[arm].seeds_needed for arm in undecided]
    seeds_needed = None if None in needed else max((n for n in needed if n), default=None)
    interval = _estimate_lead(scores_by_arm, best, others, higher_is_better=higher_is_better)
    kind: Kind = "open" if undecided else "any" if equals else "use"
    sentences = _Sentences(metric, unit, means, smallest_effect, remedy)
    text = {
        "use": lambda: sentences.say_use(best, others, interval),
        "any": lambda: sentences.say_any(best, equals),
        "open": lambda: sentences.say_open(best, undecided, seeds_needed),
    }[kind]()
    if untrained is not None:
        beaten = find_beaten(
            scores_by_arm,
            untrained.score,
            higher_is_better=higher_is_better,
            num_looks=num_looks,
        )
        is_above = (means[best] > untrained.score) == higher_is_better
        if not is_above or beaten[best] is False:
            kind, text = "do not train", sentences.say_do_not_train(best, untrained)
        elif beaten[best] is None:
            text += f" Whether it beats {sentences.name_untrained(untrained)} is open too."
    return Recommendation(
        kind,
        best,
        equals,
        undecided,
        means[best] - means[others[0]] if others else None,
        interval,
        seeds_needed,
        text,
    )


def _estimate_lead(
    scores_by_arm: Mapping[str, Scores],
    best: str,
    others: Sequence[str],
    *,
    higher_is_better: bool,
) -> Interval | None:
    arms = [best, *others]
    samples = [scores_by_arm[arm] for arm in arms]
    if len(arms) < 2 or min(map(len, samples)) < 2:
        return None
    found = ArmMeans.of(samples).contrast(pair_weights(len(arms))[: len(others)])
    lows, highs = found.interval(confidence=lead_confidence(len(arms)))
    if higher_is_better:
        return float(lows.min()), float(highs.min())
    return float(lows.max()), float(highs.max())


@dataclass(frozen=True)
class _Sentences:
    """Puts a recommendation into words."""

    metric: str
    unit: Unit
    means: Mapping[str, float]
    smallest_effect: float
    remedy: str

    def say_use(self, best: str, others: Sequence[str], interval: Interval | None) -> str:
        if not others:
            return f"Use {best}: {self._score(best)}. It is the only arm with a score."
        lead = abs(self.means[best] - self.means[others[0]])
        size = f"{self.unit.factor * lead:.{self.unit.digits}f}{self.unit.difference_name}"
        spread = ""
        if interval is not None:
            # Ahead is above zero, also where less is better.
            sign = 1 if self.means[best] >= self.means[others[0]] else -1
            low, high = sorted(sign * self.unit.factor * bound for bound in interval)
            spread = f" ({low:.{self.unit.digits}f} to {high:.{self.unit.digits}f})"
        return (
            f"Use {best}: {self._score(best)}, {size} ahead of the runner-up {others[0]}{spread}."
        )

    def say_any(self, best: str, equals: Sequence[str]) -> str:
        listed = _list_names([best, *equals])
        return (
            f"Use any of {listed}: they differ by less than {self._size()}. "
            f"{best} has the best {self.metric}, {self._value(best)}."
        )

    def say_open(self, best: str, undecided: Sequence[str], seeds_needed: int | None) -> str:
        count = f"about {seeds_needed} seeds an arm" if seeds_needed else "more seeds"
        how = f" ({self.remedy})" if self.remedy else ""
        return (
            f"Use {best} for now: {self._score(best)}. {_list_names(undecided)} cannot be told "
            f"from it yet; {count} would decide{how}."
        )

    def say_do_not_train(self, best: str, untrained: Untrained) -> str:
        return (
            f"Do not train: no arm beats {self.name_untrained(untrained)}. "
            f"The best arm is {best} with {self._value(best)}."
        )

    def name_untrained(self, untrained: Untrained) -> str:
        return f"{untrained.name} ({self.unit.show(untrained.score)}{self.unit.name})"

    def _score(self, arm: str) -> str:
        return f"{self.metric} {self._value(arm)}"

    def _value(self, arm: str) -> str:
        return f"{self.unit.show(self.means[arm])}{self.unit.name}"

    def _size(self) -> str:
        shown = f"{self.unit.factor * self.smallest_effect:g}"
        name = self.unit.difference_name
        return f"{shown}{name.removesuffix('s') if shown == '1' else name}"


def _list_names(names: Sequence[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


_CHANCES = (
    (0.99, "almost certainly better"),
    (0.95, "very likely better"),
    (0.8, "likely better"),
    (0.6, "rather better than not"),
    (0.4, "as likely better as worse"),
    (0.2, "rather worse than not"),
    (0.05, "likely worse"),
    (0.01, "very likely worse"),
    (0.0, "almost certainly worse"),
)


def name_chance(chance: float) -> str:
    """Returns the probability that an arm is better, in words."""
    return next(words for limit, words in _CHANCES if chance >= limit)
