"""Puts the judgement of a claim into a plain sentence."""

from dml_core.studies.claims import Claim
from dml_core.studies.metric_units import RATIO, Unit, unit_of


def describe_effect(
    claim: Claim,
    verdict: str,
    *,
    metric: str,
    mean: float,
    interval: tuple[float, float] | None,
    num_seeds: int,
) -> str:
    """Returns the verdict, the effect with its interval, and where that lies.

    Args:
        claim: what was judged.
        verdict: supported, contradicted or cannot tell.
        metric: what the effect is of.
        mean: the effect over the seeds.
        interval: its 95 % interval; None where every seed gave the same.
        num_seeds: how many seeds gave it.
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
