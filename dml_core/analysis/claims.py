"""Decides by rule whether a study's numbers support what a paper claims."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

import numpy as np

from dml_core.analysis.estimates import (
    MOST_SEEDS,
    ArmMeans,
    Contrasts,
    Interval,
    count_seeds_needed,
    estimate_mean,
    find_discoveries,
)
from dml_core.analysis.narrowing import list_claimed_arms, narrow_claim
from dml_core.analysis.observations import Observations, answer_metric
from dml_core.analysis.verdicts import SMALLEST_EFFECT, Comparisons, Verdict, find_level
from dml_core.config.loading import to_flat_dict
from dml_core.studies.definition import Claim, Side, Trend
from dml_core.studies.metrics import RATIO, Unit, unit_of
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.result_checks import is_number


def _describe(claim: Claim, effect: "_Effect", verdict: "ClaimVerdict", because: str) -> str:
    """Returns the verdict, the effect with its interval, and why that is the verdict."""
    metric = effect.metric
    unit = RATIO if claim.ratio else unit_of(metric)
    show = unit.show if is_level(claim) else unit.show_difference
    name = unit.name if is_level(claim) or claim.ratio else unit.difference_name
    said = f"{verdict}: {_name_effect(claim, metric)} is {show(effect.value)}{name}"
    if effect.error == 0 and not effect.is_exact:
        return f"{said} with each of {effect.num_seeds} seeds, so its spread is unknown."
    low, high = (show(bound) for bound in effect.interval)
    return (
        f"{said} (95 % interval {low} to {high}, {effect.num_seeds} seeds), "
        f"{because.format(rule=_name_rule(claim, unit, name))}."
    )


def is_level(claim: Claim) -> bool:
    """Whether a claim is about a value itself, not a difference."""
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


def _name_rule(claim: Claim, unit: Unit, name: str) -> str:
    limit = f"{unit.factor * claim.by:g}{name}"
    if claim.expect == "within":
        return f"within {limit} of zero"
    if claim.expect == "higher":
        return f"above {limit if claim.by else 'zero'}"
    return f"below -{limit}" if claim.by else "below zero"


ClaimVerdict = Literal["supported", "contradicted", "cannot tell"]

# The memory of a step is counted and a gradient derived, not estimated: equal ones are no chance.
_EXACT = ("cost.memory_mib", "gradient.")
_YES, _NO = "and all of it is {rule}", "and none of it is {rule}"
_PART = "and only a part of it is {rule}"
_TOO_SMALL = "which is too small to matter"
_ALONE = "which does not stand among all claims of the study"


@dataclass(frozen=True)
class Judgement:
    """A claim and what the numbers say to it."""

    text: str
    """The claim."""
    verdict: ClaimVerdict
    mean: float | None
    """The difference, ratio less 1, or slope; None where it cannot be computed."""
    interval: Interval | None
    """95 %; None with fewer than two seeds."""
    num_seeds: int
    explanation: str
    """One plain sentence with the numbers, or why the claim cannot be judged."""
    open_arms: tuple[str, ...] = ()
    """The arms that more seeds would help; none where the claim is decided or cannot be judged."""


class Untold(Exception):
    """A claim cannot be judged; the message is the reason."""


@dataclass(frozen=True)
class _Effect:
    """What a claim is about, estimated."""

    metric: str
    value: float
    error: float
    freedom: float
    num_seeds: int
    is_exact: bool

    @property
    def has_spread(self) -> bool:
        """Whether the seeds differ, so that their number can be weighed."""
        return self.error > 0 and self.num_seeds > 1

    @property
    def contrasts(self) -> Contrasts:
        """The same as arrays of one."""
        return Contrasts(np.array([self.value]), np.array([self.error]), np.array([self.freedom]))

    @property
    def interval(self) -> Interval:
        low, high = self.contrasts.interval() if self.error > 0 else ([self.value], [self.value])
        return float(low[0]), float(high[0])


def judge_claims(
    study: ResolvedStudy,
    observations: Observations,
    comparisons: Comparisons,
    *,
    smallest_effect: float = SMALLEST_EFFECT,
    num_looks: int = 1,
) -> list[Judgement]:
    """Returns a judgement for each claim of a study, in their order.

    A claim that one arm is better than another has the verdict of that pair, so that a report never
    says two things of it. All other claims are contrasts of arms' means (Welch's method), or means
    over seeds where both sides are of the same models; they are one family, judged by the same
    rule: at most 5 % of their verdicts are false.

    Args:
        study: the claims and arms.
        observations: the numbers.
        comparisons: of all pairs of arms by the study's metric.
        smallest_effect: the smallest difference worth having, for shares.
        num_looks: how often the growing results are judged in all.
    """
    run = {arm.name for arm in study.arms}
    narrowed = [narrow_claim(claim, run) for claim in study.definition.claims]
    claims = [claim for claim, _ in narrowed]
    effects = [_estimate(claim, study, observations) for claim in claims]
    level = find_level(num_looks)
    verdicts = _judge_family(claims, effects, smallest_effect, alpha=level)
    for place, (claim, effect) in enumerate(zip(claims, effects, strict=True)):
        if isinstance(effect, _Effect) and (pair := _find_pair(claim, study)):
            verdicts[place] = _follow_pair(claim, comparisons[pair].verdict, effect)
    judgements = []
    for (claim, lost), effect, verdict in zip(narrowed, effects, verdicts, strict=True):
        judgement = _put_together(claim, effect, *verdict)
        if isinstance(effect, _Effect) and judgement.verdict == "cannot tell":
            pair = _find_pair(claim, study)
            needed = (
                comparisons[pair].seeds_needed
                if pair is not None
                else _count_needed(claim, effect, smallest_effect, level=level)
            )
            judgement = replace(
                judgement,
                explanation=f"{judgement.explanation}{_say_needed(effect, needed)}",
                open_arms=tuple(list_claimed_arms(claim)) or tuple(run),
            )
        if lost:
            explanation = f"{judgement.explanation} Not run here: {', '.join(lost)}."
            judgement = replace(judgement, explanation=explanation)
        judgements.append(judgement)
    return judgements


def _count_needed(
    claim: Claim, effect: "_Effect", smallest_effect: float, *, level: float
) -> int | None:
    """Returns about how many seeds an arm would decide an open claim, for the effect seen."""
    if not effect.has_spread:
        return None
    signed = effect.value if claim.expect != "lower" else -effect.value
    limit = claim.by if claim.expect != "within" else math.copysign(claim.by, signed)
    # The level of the two-sided test is split between its directions.
    options = [(abs(signed - limit), level / 2)]
    is_share = unit_of(effect.metric).is_share and not claim.ratio
    if claim.by == 0 and is_share and not is_level(claim):
        options.append((smallest_effect - abs(signed), level))
    deviation = effect.error * math.sqrt(effect.num_seeds)
    counts = [
        count_seeds_needed((deviation, 0.0), distance=distance, level=each)
        for distance, each in options
        if distance > 0
    ]
    known = [count for count in counts if count is not None]
    return max(min(known), effect.num_seeds + 1) if known else None


def _say_needed(effect: "_Effect", needed: int | None) -> str:
    if not effect.has_spread:
        return ""
    if needed is None:
        return f" No number of seeds up to {MOST_SEEDS:,} would decide this."
    return f" About {needed} seeds an arm would decide."


def _put_together(
    claim: Claim, effect: "_Effect | Untold", verdict: ClaimVerdict, because: str
) -> Judgement:
    if isinstance(effect, Untold):
        return Judgement(claim.text, "cannot tell", None, None, 0, f"cannot tell: {effect}")
    if effect.num_seeds < 2:
        explanation = f"cannot tell: needs two seeds. Got {effect.num_seeds}."
        return Judgement(
            claim.text, "cannot tell", effect.value, None, effect.num_seeds, explanation
        )
    explanation = _describe(claim, effect, verdict, because)
    return Judgement(
        claim.text, verdict, effect.value, effect.interval, effect.num_seeds, explanation
    )


def _find_pair(claim: Claim, study: ResolvedStudy) -> tuple[str, str] | None:
    """Returns the two arms of a claim that one is better than the other by the study's metric."""
    left, right = claim.left, claim.right
    if left is None or right is None or claim.by or claim.ratio or claim.expect == "within":
        return None
    metric = answer_metric(study)
    if len(left.arms) != 1 or len(right.arms) != 1 or left.arms == right.arms:
        return None
    if {left.metric or metric, right.metric or metric} != {metric}:
        return None
    return left.arms[0], right.arms[0]


def _follow_pair(claim: Claim, verdict: Verdict, effect: _Effect) -> tuple[ClaimVerdict, str]:
    """Returns a claim's verdict from that of its pair of arms."""
    if verdict == "no difference":
        return "contradicted", _TOO_SMALL
    if verdict == "cannot tell":
        return "cannot tell", _explain_open(claim, effect)
    is_above = (effect.value > 0) == (claim.expect == "higher")
    return ("supported", _YES) if is_above else ("contradicted", _NO)


def _judge_family(
    claims: Sequence[Claim],
    effects: Sequence["_Effect | Untold"],
    smallest_effect: float,
    *,
    alpha: float,
) -> list[tuple[ClaimVerdict, str]]:
    """Judges all claims as one family."""
    tested = [e if isinstance(e, _Effect) and e.has_spread else None for e in effects]
    differs = find_discoveries(
        [_p_beyond(c, e) for c, e in zip(claims, tested, strict=True)], alpha=alpha
    )
    within = find_discoveries(
        [_p_within(c, e, smallest_effect) for c, e in zip(claims, tested, strict=True)],
        alpha=alpha,
    )
    verdicts: list[tuple[ClaimVerdict, str]] = []
    for place, (claim, effect) in enumerate(zip(claims, effects, strict=True)):
        if isinstance(effect, _Effect) and effect.error == 0 and effect.is_exact:
            verdicts.append(
                ("supported", _YES) if _is_met(claim, effect) else ("contradicted", _NO)
            )
        elif within[place] and claim.expect != "within":
            verdicts.append(("contradicted", _TOO_SMALL))
        elif within[place]:
            verdicts.append(("supported", _YES))
        elif differs[place] and isinstance(effect, _Effect):
            verdicts.append(
                ("supported", _YES) if _is_met(claim, effect) else ("contradicted", _NO)
            )
        else:
            is_known = isinstance(effect, _Effect)
            verdicts.append(("cannot tell", _explain_open(claim, effect) if is_known else ""))
    return verdicts


def _explain_open(claim: Claim, effect: "_Effect | Untold") -> str:
    """Returns why a claim is open: by its interval, or only among all claims."""
    assert isinstance(effect, _Effect)
    low, high = effect.interval
    if claim.expect == "lower":
        low, high = -high, -low
    limits = (-claim.by, claim.by) if claim.expect == "within" else (claim.by,)
    return _PART if any(low <= limit <= high for limit in limits) else _ALONE


def _is_met(claim: Claim, effect: _Effect) -> bool:
    if claim.expect == "within":
        return abs(effect.value) <= claim.by
    return (effect.value if claim.expect == "higher" else -effect.value) > claim.by


def _p_beyond(claim: Claim, effect: _Effect | None) -> float:
    """Returns the p-value that an effect lies beyond the claim's limit, on either side of it."""
    if effect is None:
        return 1.0
    distance = effect.value if claim.expect != "lower" else -effect.value
    if claim.expect == "within":
        # Outside is above the one limit or below the other.
        distance = max(abs(distance) - claim.by, 0.0)
    else:
        distance -= claim.by
    return float(replace(effect, value=distance).contrasts.p_differs[0])


def _p_within(claim: Claim, effect: _Effect | None, smallest_effect: float) -> float:
    """Returns the p-value that an effect is too small to matter, or within the claim's limit."""
    if effect is None or is_level(claim):
        return 1.0
    if claim.expect == "within":
        return float(effect.contrasts.p_within(claim.by)[0])
    is_share = unit_of(effect.metric).is_share and not claim.ratio
    if claim.by or not is_share:
        return 1.0
    return float(effect.contrasts.p_within(smallest_effect)[0])


def _estimate(claim: Claim, study: ResolvedStudy, observations: Observations) -> "_Effect | Untold":
    try:
        metrics = _list_metrics(claim, study)
        is_exact = all(any(part in metric for part in _EXACT) for metric in metrics)
        if claim.ratio or len(set(metrics)) > 1:
            return _estimate_by_seed(claim, study, observations, metrics[0], is_exact=is_exact)
        weights, values = _weigh(claim, study, observations)
        count = min(len(values[arm]) for arm in weights)
        if count < 2:
            value = sum(weight * fmean(values[arm].values()) for arm, weight in weights.items())
            return _Effect(metrics[0], value, 0.0, math.inf, count, is_exact)
        # Over all arms, as verdicts are: the shifts of seeds are estimated from all of them.
        scores = observations.scalars(metrics[0])
        arms = [arm.name for arm in study.arms if len(scores.get(arm.name, {})) > 1]
        means = ArmMeans.of([scores[arm] for arm in arms])
        found = means.contrast([weights.get(arm, 0.0) for arm in arms])
        return _Effect(
            metrics[0],
            float(found.value[0]),
            float(found.error[0]),
            float(found.freedom[0]),
            count,
            is_exact,
        )
    except Untold as reason:
        return reason


def _estimate_by_seed(
    claim: Claim, study: ResolvedStudy, observations: Observations, metric: str, *, is_exact: bool
) -> _Effect:
    """Estimates an effect that each seed has by itself: a ratio, or two metrics of one model."""
    effects = _list_effects(claim, study, observations)
    if len(effects) < 2:
        return _Effect(metric, fmean(effects), 0.0, math.inf, len(effects), is_exact)
    estimate = estimate_mean(effects)
    error = float(estimate.deviation) / math.sqrt(len(effects))
    return _Effect(metric, float(estimate.mean), error, len(effects) - 1.0, len(effects), is_exact)


def _weigh(
    claim: Claim, study: ResolvedStudy, observations: Observations
) -> tuple[dict[str, float], dict[str, dict[int, float]]]:
    """Returns the weight of each arm's mean in a claim's effect, and the arms' values."""
    if claim.trend is not None:
        places, values = _place_on_trend(claim.trend, study, observations)
        center = fmean(places.values())
        total = math.fsum((place - center) ** 2 for place in places.values())
        return {arm: (place - center) / total for arm, place in places.items()}, values
    assert claim.left is not None
    values = _collect(claim.left.arms, claim.left.metric, study, observations)
    weights = dict.fromkeys(claim.left.arms, 1 / len(claim.left.arms))
    if claim.right is not None:
        values |= _collect(claim.right.arms, claim.right.metric, study, observations)
        for arm in claim.right.arms:
            weights[arm] = weights.get(arm, 0.0) - 1 / len(claim.right.arms)
    return weights, values


def _list_metrics(claim: Claim, study: ResolvedStudy) -> list[str]:
    parts: list[Side | Trend | None] = [claim.left, claim.right, claim.trend]
    return [part.metric or answer_metric(study) for part in parts if part is not None]


def _list_effects(claim: Claim, study: ResolvedStudy, observations: Observations) -> list[float]:
    """Returns the effect of each seed that both sides have."""
    assert claim.left is not None
    assert claim.right is not None
    left = _average(claim.left, study, observations)
    right = _average(claim.right, study, observations)
    seeds = sorted(left.keys() & right.keys())
    if not seeds:
        raise Untold("the two sides have no seed in common.")
    if not claim.ratio:
        return [left[seed] - right[seed] for seed in seeds]
    if any(right[seed] == 0 for seed in seeds):
        raise Untold("the right side is zero, so there is no ratio.")
    return [left[seed] / right[seed] - 1 for seed in seeds]


def _average(side: Side, study: ResolvedStudy, observations: Observations) -> dict[int, float]:
    values = _collect(side.arms, side.metric, study, observations)
    seeds = _shared_seeds(values)
    return {seed: fmean(by_seed[seed] for by_seed in values.values()) for seed in seeds}


def _place_on_trend(
    trend: Trend, study: ResolvedStudy, observations: Observations
) -> tuple[dict[str, float], dict[str, dict[int, float]]]:
    """Returns the rank of each arm's value of the trend's key, and the arms' scores."""
    known: dict[str, float] = {}
    for arm in study.arms:
        value: Any = to_flat_dict(study.arm_config(arm.name)).get(trend.key)
        if is_number(value):
            known[arm.name] = float(value)
    values = _collect(trend.arms or tuple(known), trend.metric, study, observations)
    ranks = {value: rank for rank, value in enumerate(sorted({known[arm] for arm in values}))}
    if len(ranks) < 2:
        raise Untold(f"a trend needs two values of {trend.key}. Got {len(ranks)}.")
    return {arm: float(ranks[known[arm]]) for arm in values}, values


def _collect(
    arms: tuple[str, ...], metric: str, study: ResolvedStudy, observations: Observations
) -> dict[str, dict[int, float]]:
    name = metric or answer_metric(study)
    values = observations.scalars(name)
    run = {arm.name for arm in study.arms}
    for arm in arms:
        if arm not in run:
            raise Untold(f"arm {arm} was not run.{_name_profiles(arm, study)}")
        if arm not in values:
            raise Untold(f"arm {arm} has no {name}.")
    return {arm: values[arm] for arm in arms}


def _name_profiles(arm: str, study: ResolvedStudy) -> str:
    """Returns which sizes of the study run an arm; nothing if none but the smallest does."""
    profiles = study.definition.profiles.items()
    found = [
        name
        for name, profile in profiles
        if name != "smoke" and (profile.arms is None or arm in profile.arms)
    ]
    return f" These profiles run it: {', '.join(found)}." if found else ""


def _shared_seeds(values: Mapping[str, Mapping[int, float]]) -> list[int]:
    shared = set.intersection(*(set(by_seed) for by_seed in values.values()))
    if not shared:
        raise Untold(f"arms {', '.join(values)} have no seed in common.")
    return sorted(shared)
