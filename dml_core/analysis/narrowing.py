"""Restricts the claims of a study to the arms that were run, as a profile leaves some out."""

from collections.abc import Set

from dml_core.studies.definition import Claim, Side


def narrow_claim(claim: Claim, run: Set[str]) -> tuple[Claim, list[str]]:
    """Returns a claim restricted to the arms of the run, and the names of the removed arms.

    Two sides with the same number of arms are pairs (such as the same embedding size of two
    losses), and a pair is kept or removed as a whole: otherwise a profile could compare long
    embeddings with short ones. A claim that would lose a whole side is returned unchanged.
    """
    narrowed = _narrow_trend(claim, run) if claim.trend is not None else _narrow_sides(claim, run)
    lost = [arm for arm in list_claimed_arms(claim) if arm not in list_claimed_arms(narrowed)]
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


def list_claimed_arms(claim: Claim) -> list[str]:
    """Returns the arms that a claim names, each once; none for a trend over all arms."""
    if claim.trend is not None:
        return list(claim.trend.arms)
    sides = [side for side in (claim.left, claim.right) if side is not None]
    return list(dict.fromkeys(arm for side in sides for arm in side.arms))
