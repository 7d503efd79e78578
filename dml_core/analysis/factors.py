"""The effect of one factor of a study, pooled over all that else differs between its arms."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from dml_core.analysis.estimates import ArmMeans, Interval
from dml_core.analysis.verdicts import (
    OPEN,
    SAME,
    SMALLEST_EFFECT,
    Scores,
    Verdict,
    decide,
    find_level,
)
from dml_core.config.loading import to_flat_dict
from dml_core.studies.resolved import ResolvedStudy

Coordinates = Mapping[str, Mapping[str, Any]]
"""For each arm the value of each factor, by dotted key."""


@dataclass(frozen=True)
class FactorEffect:
    """What another value of one key changes, everything else being equal."""

    key: str
    value: Any
    best: Any
    """The value with the best mean, which `value` is compared with."""
    num_pairs: int
    """Pairs of arms that differ in this key alone."""
    difference: float
    """Mean over the pairs: score with `value` minus score with `best`."""
    interval: Interval
    """95 %, of this effect alone."""
    verdict: Verdict
    """Of `value` compared with `best`."""


def read_coordinates(study: ResolvedStudy) -> dict[str, dict[str, Any]]:
    """Returns the values of the keys that any arm of a study sets, for every arm."""
    keys = list(dict.fromkeys(key for arm in study.arms for key in arm.layer))
    found = {}
    for arm in study.arms:
        config = to_flat_dict(study.arm_config(arm.name))
        found[arm.name] = {key: _as_hashable(config.get(key)) for key in keys}
    return found


def _as_hashable(value: Any) -> Any:
    # A list such as loss.matryoshka is one value of its key.
    return tuple(value) if isinstance(value, list) else value


def pool_factors(
    scores_by_arm: Mapping[str, Scores],
    coordinates: Coordinates,
    *,
    smallest_effect: float = SMALLEST_EFFECT,
    higher_is_better: bool = True,
    num_looks: int = 1,
) -> list[FactorEffect]:
    """Returns the pooled effects of all factors that differ alone in two or more pairs of arms.

    Each effect is a contrast by Welch's method: the mean difference of pairs of arms that are equal
    but for this key. The effects of a study are one family, as its pairs of arms are.

    Args:
        scores_by_arm: for each arm the score of each seed.
        coordinates: of each arm.
        smallest_effect: the smallest difference worth having.
        higher_is_better: False for distances and costs.
        num_looks: how often the growing results are judged in all.
    """
    arms = [arm for arm in coordinates if len(scores_by_arm.get(arm, ())) > 1]
    if len(arms) < 3:
        return []
    means = ArmMeans.of([scores_by_arm[arm] for arm in arms])
    effects = [
        effect
        for key in coordinates[arms[0]]
        for effect in _list_effects(key, arms, means.mean, coordinates, higher_is_better)
    ]
    if not effects:
        return []
    found = means.contrast([weights for *_, weights in effects])
    codes = decide(found, smallest_effect=smallest_effect, alpha=find_level(num_looks))
    lows, highs = found.interval()
    sign = 1 if higher_is_better else -1
    return [
        FactorEffect(
            key,
            value,
            best,
            num_pairs,
            float(found.value[row]),
            (float(lows[row]), float(highs[row])),
            _name_verdict(int(codes[row]), sign),
        )
        for row, (key, value, best, num_pairs, _) in enumerate(effects)
    ]


def _list_effects(
    key: str,
    arms: list[str],
    means: np.ndarray[Any, np.dtype[np.float64]],
    coordinates: Coordinates,
    higher_is_better: bool,
) -> list[tuple[str, Any, Any, int, list[float]]]:
    """Returns key, value, best value, number of pairs and weights of each pooled effect."""
    groups: dict[Hashable, dict[Any, int]] = defaultdict(dict)
    for place, arm in enumerate(arms):
        rest = tuple((k, repr(v)) for k, v in coordinates[arm].items() if k != key)
        groups[rest][coordinates[arm][key]] = place
    varied = [group for group in groups.values() if len(group) > 1]
    values = list(dict.fromkeys(value for group in varied for value in group))
    if len(values) < 2:
        return []
    pooled = {
        value: fmean(_center(group, value, means) for group in varied if value in group)
        for value in values
    }
    best = (max if higher_is_better else min)(values, key=lambda value: pooled[value])
    effects = []
    for value in values:
        pairs = [(g[value], g[best]) for g in varied if value in g and best in g]
        if value == best or len(pairs) < 2:
            continue
        weights = [0.0] * len(arms)
        for with_value, with_best in pairs:
            weights[with_value] += 1 / len(pairs)
            weights[with_best] -= 1 / len(pairs)
        effects.append((key, value, best, len(pairs), weights))
    return effects


def _center(
    group: Mapping[Any, int], value: Any, means: np.ndarray[Any, np.dtype[np.float64]]
) -> float:
    """Returns a mean less that of its group, so that groups of other levels can be pooled."""
    return float(means[group[value]] - np.mean([means[place] for place in group.values()]))


def _name_verdict(code: int, sign: int) -> Verdict:
    if code == OPEN:
        return "cannot tell"
    if code == SAME:
        return "no difference"
    return "better" if code * sign > 0 else "worse"
