"""Says a verdict in plain words."""

from dml_core.statistics.power import MOST_SEEDS


def explain(
    verdict: str,
    *,
    num_seeds: int,
    num_pairs: int,
    deviation: float | None,
    mean: float | None,
    seeds_needed: int | None,
    size: str,
) -> str:
    """Returns the verdict, and where there is none, why and what it would take.

    Args:
        verdict: baseline, better, worse or cannot tell.
        num_seeds: seeds of the arm.
        num_pairs: seeds that it shares with the arm it is compared with.
        deviation: of the pairs' differences; None with fewer than two.
        mean: of the pairs' differences.
        seeds_needed: about how many would show a difference of the resolution.
        size: that difference in words, such as `0.5 points`.
    """
    if verdict != "cannot tell":
        return verdict
    if num_seeds == 0:
        return "cannot tell: no seed has a score"
    if num_pairs == 0:
        return "cannot tell: no seed in common with the arm it is compared with"
    if deviation is None:
        return "cannot tell: one seed gives no interval, two or more are needed"
    if deviation == 0:
        if mean == 0:
            return "cannot tell: equal with every seed"
        return "cannot tell: every seed gave the same difference, so its spread is unknown"
    if seeds_needed is None:
        return f"cannot tell: more than {MOST_SEEDS:,} seeds would be needed for {size}"
    if seeds_needed <= num_pairs:
        return f"cannot tell: {size} would likely have shown with these {num_pairs} seeds"
    return f"cannot tell: about {seeds_needed:,} seeds would be needed for {size}"
