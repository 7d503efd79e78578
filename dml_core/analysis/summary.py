"""The answer of a study: the score of each arm, and its difference to the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dml_core.analysis.intervals import (
    MOST_SEEDS,
    adjust_holm,
    check_finite,
    count_seeds_needed,
    estimate_mean,
)
from dml_core.config.problems import suggest

Scores = Mapping[int, float]
"""The score of an arm by seed."""
Verdict = Literal["baseline", "better", "worse", "cannot tell"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """The difference of an arm to its reference, paired by seed."""

    reference: str
    """The arm to compare with."""
    num_pairs: int
    """Seeds that both have."""
    mean: float | None = None
    """None without pairs."""
    interval: Interval | None = None
    """95 % interval of this comparison alone; None with fewer than two pairs."""
    deviation: float | None = None
    """Standard deviation of the paired differences."""
    p_value: float | None = None
    """p-value of this comparison alone."""
    adjusted_p_value: float | None = None
    """p-value adjusted by Holm over all comparisons of the study; it decides the verdict."""


@dataclass(frozen=True)
class ArmSummary:
    """One row of the answer."""

    arm: str
    num_seeds: int
    mean: float | None
    """None if the arm has no score."""
    interval: Interval | None
    """95 % t-interval over the seeds; None with fewer than two."""
    deviation: float | None
    """Standard deviation over the seeds."""
    difference: Difference | None
    """Difference to the reference; None for the baseline."""
    verdict: Verdict
    seeds_needed: int | None
    """Seeds to detect a difference of the resolution, approximately; None if unknown."""
    text: str
    """The verdict as text."""


def summarize(
    scores_by_arm: Mapping[str, Scores],
    *,
    baseline: str,
    references: Mapping[str, str] | None = None,
    resolution: float = 0.005,
    higher_is_better: bool = True,
    is_share: bool = True,
    resolution_text: str = "",
    alpha: float = 0.05,
) -> list[ArmSummary]:
    """Returns mean, interval, paired difference and verdict of each arm, in the given order.

    An arm has a verdict if the Holm-adjusted p-value of the paired t-test is at most alpha, so a
    study without true differences has any verdict in at most 5 % of cases. Intervals are those of
    each comparison alone: with several arms an interval may exclude zero without a verdict. The
    seeds needed include the correction: with K comparisons Holm's first step tests at alpha / K.

    Args:
        scores_by_arm: scores by arm and seed; an arm may have none.
        baseline: the arm to compare the others with, on the seeds that both have.
        references: other arms to compare with, by arm.
        resolution: the smallest difference of interest; 0.005 is half a point of R@1.
        higher_is_better: False for distances.
        is_share: whether scores lie between 0 and 1 and are shown in points; False for distances.
        resolution_text: the resolution as text; empty formats it in points, or as a number.
        alpha: family-wise error rate of a study.

    Raises:
        ValueError: for an unknown baseline or reference, or a score that is not finite.
    """
    chosen = {arm: baseline for arm in scores_by_arm if arm != baseline} | dict(references or {})
    _check_arms(scores_by_arm, [baseline, *chosen, *chosen.values()])
    for scores in scores_by_arm.values():
        check_finite(np.array(list(scores.values()), dtype=np.float64))
    differences = {
        arm: compare(scores_by_arm[arm], scores_by_arm[reference], reference=reference)
        for arm, reference in chosen.items()
    }
    differences = _adjust(differences)
    num_tests = sum(d.p_value is not None for d in differences.values())
    plain = f"{100 * resolution:g} points" if is_share else f"{resolution:g}"
    return [
        _summarize_arm(
            arm,
            scores,
            differences.get(arm),
            resolution=resolution,
            higher_is_better=higher_is_better,
            size=resolution_text or plain,
            alpha=alpha,
            num_tests=max(1, num_tests),
        )
        for arm, scores in scores_by_arm.items()
    ]


def compare(scores: Scores, other: Scores, *, reference: str) -> Difference:
    """Returns the difference of an arm to another on the seeds that both have, not adjusted."""
    seeds = sorted(set(scores) & set(other))
    pairs = np.array([scores[seed] - other[seed] for seed in seeds], dtype=np.float64)
    if len(pairs) < 2:
        return Difference(reference, len(pairs), mean=float(pairs[0]) if len(pairs) else None)
    estimate = estimate_mean(pairs)
    return Difference(
        reference=reference,
        num_pairs=len(pairs),
        mean=float(estimate.mean),
        interval=(float(estimate.low), float(estimate.high)),
        deviation=float(estimate.deviation),
        p_value=float(estimate.p_value),
    )


def _check_arms(scores_by_arm: Mapping[str, Scores], named: Sequence[str]) -> None:
    for arm in named:
        if arm not in scores_by_arm:
            raise ValueError(
                f"baseline and references must be arms with an entry. Got {arm!r}."
                f"{suggest(arm, scores_by_arm)} The arms: {', '.join(scores_by_arm)}."
            )


def _adjust(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    tested = [arm for arm, d in differences.items() if d.p_value is not None]
    adjusted = adjust_holm([differences[arm].p_value or 0.0 for arm in tested])
    found = dict(zip(tested, adjusted.tolist(), strict=True))
    return {arm: replace(d, adjusted_p_value=found.get(arm)) for arm, d in differences.items()}


def _summarize_arm(
    arm: str,
    scores: Scores,
    difference: Difference | None,
    *,
    resolution: float,
    higher_is_better: bool,
    size: str,
    alpha: float,
    num_tests: int,
) -> ArmSummary:
    values = np.array(list(scores.values()), dtype=np.float64)
    estimate = estimate_mean(values) if len(values) > 1 else None
    verdict = _judge(difference, higher_is_better=higher_is_better, alpha=alpha)
    needed = _count_needed(difference, resolution=resolution, alpha=alpha / num_tests)
    return ArmSummary(
        arm=arm,
        num_seeds=len(values),
        mean=float(values.mean()) if len(values) else None,
        interval=(float(estimate.low), float(estimate.high)) if estimate else None,
        deviation=float(estimate.deviation) if estimate else None,
        difference=difference,
        verdict=verdict,
        seeds_needed=needed,
        text=explain(
            verdict,
            num_seeds=len(values),
            num_pairs=difference.num_pairs if difference else 0,
            deviation=difference.deviation if difference else None,
            mean=difference.mean if difference else None,
            seeds_needed=needed,
            size=size,
        ),
    )


def _judge(difference: Difference | None, *, higher_is_better: bool, alpha: float) -> Verdict:
    if difference is None:
        return "baseline"
    if difference.adjusted_p_value is None or difference.adjusted_p_value > alpha:
        return "cannot tell"
    assert difference.mean is not None
    return "better" if (difference.mean > 0) == higher_is_better else "worse"


def _count_needed(difference: Difference | None, *, resolution: float, alpha: float) -> int | None:
    if difference is None or not difference.deviation:
        return None
    return count_seeds_needed(deviation=difference.deviation, difference=resolution, alpha=alpha)


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
    """Returns the verdict as text; without one, why and how many seeds are needed.

    Args:
        verdict: baseline, better, worse or cannot tell.
        num_seeds: seeds of the arm.
        num_pairs: seeds that it shares with its reference.
        deviation: standard deviation of the paired differences; None with fewer than two.
        mean: mean of the paired differences.
        seeds_needed: seeds to detect a difference of the resolution, approximately.
        size: the resolution as text, such as `0.5 points`.
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


_NOTES = (
    "Mean over seeds with its 95 % interval (Student's t){unit}. Differences are paired by seed; "
    "their intervals are those of each comparison alone. A verdict is given only where the "
    "difference stands among all {count} comparisons of the study (paired t-test, Holm's "
    "correction): a study without any true difference gives a verdict in at most 5 % of cases."
)


def render_markdown(summaries: Sequence[ArmSummary], *, metric: str, is_share: bool = True) -> str:
    """Returns a Markdown table with one row per arm in the given order, and a note.

    Args:
        summaries: from `summarize`.
        metric: name of the score, as the heading of its column.
        is_share: whether scores lie between 0 and 1 and are shown in points; False for distances.
    """
    differences = [s.difference for s in summaries if s.difference is not None]
    count = sum(difference.p_value is not None for difference in differences)
    references = list(dict.fromkeys(difference.reference for difference in differences))
    heading = f"difference to {references[0]}" if len(references) == 1 else "difference"
    lines = [
        f"| arm | seeds | {_escape(metric)} | {_escape(heading)} | verdict |",
        "|---|---:|---:|---:|---|",
        *(_render_row(s, is_share=is_share, names=len(references) > 1) for s in summaries),
    ]
    unit = ", in points (1 point = 0.01)" if is_share else ""
    return "\n".join([*lines, "", _NOTES.format(unit=unit, count=count), ""])


def _render_row(summary: ArmSummary, *, is_share: bool, names: bool) -> str:
    difference = summary.difference
    change = ""
    if difference is not None:
        change = _render_estimate(difference.mean, difference.interval, is_share, sign="+")
        change += f" to {difference.reference}" if names else ""
    cells = [
        summary.arm,
        str(summary.num_seeds),
        _render_estimate(summary.mean, summary.interval, is_share, sign=""),
        change,
        summary.text,
    ]
    return f"| {' | '.join(map(_escape, cells))} |"


def _render_estimate(
    mean: float | None, interval: Interval | None, is_share: bool, *, sign: str
) -> str:
    if mean is None:
        return "none"

    def show(value: float) -> str:
        return f"{100 * value:{sign}.2f}" if is_share else f"{value:{sign}.4f}"

    if interval is None:
        return f"{show(mean)} (no interval)"
    return f"{show(mean)} [{show(interval[0])}, {show(interval[1])}]"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
