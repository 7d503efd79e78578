"""Decides whether a study's numbers support the claims of a paper."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from dml_core.analysis.intervals import estimate_mean
from dml_core.analysis.observations import Observations, answer_metric
from dml_core.config.loading import to_flat_dict
from dml_core.studies.definition import Claim, Side, Trend
from dml_core.studies.metrics import RATIO, Unit, unit_of
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.result_checks import is_number


def narrow_claim(claim: Claim, run: Set[str]) -> tuple[Claim, list[str]]:
    """Returns a claim restricted to the arms of the run, and the names of the removed arms.

    Two sides with the same number of arms are pairs (such as the same embedding size of two
    losses), and a pair is kept or removed as a whole: otherwise a profile could compare long
    embeddings with short ones. A claim that would lose a whole side is returned unchanged.
    """
    narrowed = _narrow_trend(claim, run) if claim.trend is not None else _narrow_sides(claim, run)
    lost = [arm for arm in _list_arms(claim) if arm not in _list_arms(narrowed)]
    return narrowed, lost


def _narrow_trend(claim: Claim, run: Set[str]) -> Claim:
    assert claim.trend is not None
    kept = tuple(arm for arm in claim.trend.arms if arm in run)
    if not kept:
        return claim
    return claim.model_copy(update={"trend": claim.trend.model_copy(update={"arms": kept})})


def _narrow_sides(claim: Claim, run: Set[str]) -> Claim:
    assert claim.left is not None
    if claim.right is None:
        left = tuple(arm for arm in claim.left.arms if arm in run)
        return claim.model_copy(update={"left": _with_arms(claim.left, left)}) if left else claim
    left, right = _keep_arms(claim.left.arms, claim.right.arms, run)
    if not left or not right:
        return claim
    update = {"left": _with_arms(claim.left, left), "right": _with_arms(claim.right, right)}
    return claim.model_copy(update=update)


def _keep_arms(
    left: tuple[str, ...], right: tuple[str, ...], run: Set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if len(left) != len(right):
        return tuple(a for a in left if a in run), tuple(a for a in right if a in run)
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a in run and b in run]
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _with_arms(side: Side, arms: tuple[str, ...]) -> Side:
    return side.model_copy(update={"arms": arms})


def _list_arms(claim: Claim) -> list[str]:
    if claim.trend is not None:
        return list(claim.trend.arms)
    sides = [side for side in (claim.left, claim.right) if side is not None]
    return list(dict.fromkeys(arm for side in sides for arm in side.arms))


def describe_effect(
    claim: Claim,
    verdict: str,
    *,
    metric: str,
    mean: float,
    interval: tuple[float, float] | None,
    num_seeds: int,
) -> str:
    """Returns a sentence with the verdict, the effect with its interval, and the rule.

    Args:
        claim: the claim.
        verdict: supported, contradicted or cannot tell.
        metric: the metric of the effect.
        mean: mean effect over the seeds.
        interval: its 95 % interval; None if every seed has the same effect.
        num_seeds: number of seeds.
    """
    unit = RATIO if claim.ratio else unit_of(metric)
    show = unit.show if is_level(claim) else unit.show_difference
    name = unit.name if is_level(claim) or claim.ratio else unit.difference_name
    said = f"{verdict}: {_name_effect(claim, metric)} is {show(mean)}{name}"
    if interval is None:
        return f"{said} with each of {num_seeds} seeds, so its spread is unknown."
    low, high = (show(bound) for bound in interval)
    return (
        f"{said} (95 % interval {low} to {high}, {num_seeds} seeds), and {_name_place(verdict)} "
        f"{_name_rule(claim, unit, name)}."
    )


def is_level(claim: Claim) -> bool:
    """Returns whether a claim is about a value, not a difference."""
    return claim.trend is None and claim.right is None


def _name_effect(claim: Claim, metric: str) -> str:
    if claim.trend is not None:
        return f"the change of {metric} for each step of {claim.trend.key}"
    assert claim.left is not None
    left = _name_arms(claim.left.arms)
    if claim.right is None:
        return f"{metric} of {left}"
    right = _name_arms(claim.right.arms)
    other = claim.right.metric if claim.right.metric not in ("", claim.left.metric) else ""
    right = f"{other} of {right}" if other else right
    if claim.ratio:
        return f"{metric} of {left} relative to {right}"
    return f"{metric} of {left} less {right}"


def _name_arms(arms: tuple[str, ...]) -> str:
    return arms[0] if len(arms) == 1 else f"the mean of {', '.join(arms)}"


def _name_place(verdict: str) -> str:
    places = {"supported": "all of it is", "contradicted": "none of it is"}
    return places.get(verdict, "only a part of it is")


def _name_rule(claim: Claim, unit: Unit, name: str) -> str:
    limit = f"{unit.factor * claim.by:g}{name}"
    if claim.expect == "within":
        return f"within {limit} of zero"
    if claim.expect == "higher":
        return f"above {limit if claim.by else 'zero'}"
    return f"below -{limit}" if claim.by else "below zero"


ClaimVerdict = Literal["supported", "contradicted", "cannot tell"]

# Memory is counted and gradients are derived, not estimated, so equal values are exact.
_EXACT = ("cost.memory_mib", "gradient.")


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict and effect."""

    text: str
    """The claim."""
    verdict: ClaimVerdict
    mean: float | None
    """Mean over the seeds of differences, ratios less 1, or slopes; None if no seed has one."""
    interval: tuple[float, float] | None
    """95 % interval; None with fewer than two seeds."""
    num_seeds: int
    explanation: str
    """A sentence with the numbers, or why the claim cannot be decided."""


class Undecidable(Exception):
    """A claim cannot be decided; the message is the reason."""


def judge_claims(study: ResolvedStudy, observations: Observations) -> list[Judgement]:
    """Returns a judgement for each claim of a study, in their order.

    The effect (left less right, their ratio less 1, or the slope of a trend over the ranks) is
    computed for each seed that all arms of the claim share. Its 95 % t-interval decides: supported
    if all of it is as expected, contradicted if none of it is. Without a true difference, a claim
    of one is supported in 2.5 % of cases.
    """
    return [judge_claim(claim, study, observations) for claim in study.definition.claims]


def judge_claim(claim: Claim, study: ResolvedStudy, observations: Observations) -> Judgement:
    """Returns the judgement of one claim, over those of its arms that were run."""
    claim, lost = narrow_claim(claim, {arm.name for arm in study.arms})
    judgement = _judge(claim, study, observations)
    if not lost:
        return judgement
    explanation = f"{judgement.explanation} Not run here: {', '.join(lost)}."
    return replace(judgement, explanation=explanation)


def _judge(claim: Claim, study: ResolvedStudy, observations: Observations) -> Judgement:
    try:
        effects = _list_effects(claim, study, observations)
    except Undecidable as reason:
        return Judgement(claim.text, "cannot tell", None, None, 0, f"cannot tell: {reason}")
    mean, count = fmean(effects), len(effects)
    if count < 2:
        explanation = f"cannot tell: needs two seeds. Got {count}."
        return Judgement(claim.text, "cannot tell", mean, None, count, explanation)
    estimate = estimate_mean(effects)
    interval = (float(estimate.low), float(estimate.high))
    metrics = _list_metrics(claim, study)
    is_exact = all(any(part in metric for part in _EXACT) for metric in metrics)
    has_spread = float(estimate.deviation) > 0 or is_exact
    verdict = compare_with_claim(claim, interval) if has_spread else "cannot tell"
    explanation = describe_effect(
        claim,
        verdict,
        metric=metrics[0],
        mean=mean,
        interval=interval if has_spread else None,
        num_seeds=count,
    )
    return Judgement(claim.text, verdict, mean, interval, count, explanation)


def compare_with_claim(claim: Claim, interval: tuple[float, float]) -> ClaimVerdict:
    """Returns the verdict on a claim from the interval of its effect."""
    low, high = interval
    if claim.expect == "lower":
        low, high = -high, -low
    if claim.expect == "within":
        is_inside = -claim.by <= low and high <= claim.by
        is_outside = low > claim.by or high < -claim.by
    else:
        is_inside, is_outside = low > claim.by, high <= claim.by
    if is_inside:
        return "supported"
    return "contradicted" if is_outside else "cannot tell"


def _list_metrics(claim: Claim, study: ResolvedStudy) -> list[str]:
    parts: list[Side | Trend | None] = [claim.left, claim.right, claim.trend]
    return [part.metric or answer_metric(study) for part in parts if part is not None]


def _list_effects(claim: Claim, study: ResolvedStudy, observations: Observations) -> list[float]:
    """Returns the effect by seed."""
    if claim.trend is not None:
        return _list_slopes(claim.trend, study, observations)
    assert claim.left is not None
    left = _average(claim.left, study, observations)
    if claim.right is None:
        return list(left.values())
    right = _average(claim.right, study, observations)
    seeds = sorted(left.keys() & right.keys())
    if not seeds:
        raise Undecidable("the two sides have no seed in common.")
    if not claim.ratio:
        return [left[seed] - right[seed] for seed in seeds]
    if any(right[seed] == 0 for seed in seeds):
        raise Undecidable("the right side is zero, so there is no ratio.")
    return [left[seed] / right[seed] - 1 for seed in seeds]


def _average(side: Side, study: ResolvedStudy, observations: Observations) -> dict[int, float]:
    values = _collect(side.arms, side.metric, study, observations)
    seeds = _shared_seeds(values)
    return {seed: fmean(by_seed[seed] for by_seed in values.values()) for seed in seeds}


def _list_slopes(trend: Trend, study: ResolvedStudy, observations: Observations) -> list[float]:
    known: dict[str, float] = {}
    for arm in study.arms:
        value: Any = to_flat_dict(study.arm_config(arm.name)).get(trend.key)
        if is_number(value):
            known[arm.name] = float(value)
    values = _collect(trend.arms or tuple(known), trend.metric, study, observations)
    ranks = {value: rank for rank, value in enumerate(sorted({known[arm] for arm in values}))}
    if len(ranks) < 2:
        raise Undecidable(f"a trend needs two values of {trend.key}. Got {len(ranks)}.")
    places = {arm: float(ranks[known[arm]]) for arm in values}
    return [
        fit_slope([(places[arm], by_seed[seed]) for arm, by_seed in values.items()])
        for seed in _shared_seeds(values)
    ]


def fit_slope(points: list[tuple[float, float]]) -> float:
    """Returns the least-squares slope of points."""
    center = fmean(x for x, _ in points)
    level = fmean(y for _, y in points)
    covariance = math.fsum((x - center) * (y - level) for x, y in points)
    return covariance / math.fsum((x - center) ** 2 for x, _ in points)


def _collect(
    arms: tuple[str, ...], metric: str, study: ResolvedStudy, observations: Observations
) -> dict[str, dict[int, float]]:
    name = metric or answer_metric(study)
    values = observations.scalars(name)
    run = {arm.name for arm in study.arms}
    for arm in arms:
        if arm not in run:
            raise Undecidable(f"arm {arm} was not run.")
        if arm not in values:
            raise Undecidable(f"arm {arm} has no {name}.")
    return {arm: values[arm] for arm in arms}


def _shared_seeds(values: Mapping[str, Mapping[int, float]]) -> list[int]:
    shared = set.intersection(*(set(by_seed) for by_seed in values.values()))
    if not shared:
        raise Undecidable(f"arms {', '.join(values)} have no seed in common.")
    return sorted(shared)
