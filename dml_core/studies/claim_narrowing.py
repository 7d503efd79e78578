"""Narrows a claim to the arms that a profile of its study runs."""

from collections.abc import Set

from dml_core.studies.claims import Claim, Side


def narrow_claim(claim: Claim, run: Set[str]) -> tuple[Claim, list[str]]:
    """Returns a claim over the arms that are run, and the names of those that it lost.

    Two sides of the same number of arms are pairs (the same length of two losses, say), and a pair
    stays or goes as one: otherwise a profile could compare long embeddings with short ones. A claim
    that would lose a whole side is left as it is.
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
