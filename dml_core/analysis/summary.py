"""The answer of a study: the recommendation, every arm's score, and how the arms compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dml_core.analysis.estimates import Interval, compute_mean, estimate_interval
from dml_core.analysis.factors import Coordinates, FactorEffect, pool_factors
from dml_core.analysis.recommendation import (
    Recommendation,
    Untrained,
    find_beaten,
    name_chance,
    recommend,
)
from dml_core.analysis.verdicts import (
    SMALLEST_EFFECT,
    Comparison,
    Comparisons,
    Scores,
    compare_arms,
)
from dml_core.config.problems import suggest
from dml_core.studies.metrics import SHARE, Unit


@dataclass(frozen=True)
class ArmSummary:
    """One row of the answer."""

    arm: str
    num_seeds: int
    mean: float | None
    """None where the arm has no score."""
    interval: Interval | None
    """95 % t-interval over the seeds; None with fewer than two."""
    comparison: Comparison | None
    """With the arm that the study compares it with; None for that arm itself."""
    to_best: Comparison | None
    """With the best arm; None for the best arm itself."""
    beats_untrained: bool | None
    """Whether it beats what no training gives; None where that is open or unknown."""
    text: str
    """The verdict in words."""

    @property
    def verdict(self) -> str:
        """The comparison's, `best` for the best arm and `baseline` for another reference."""
        if self.comparison is not None:
            return self.comparison.verdict
        return "best" if self.to_best is None else "baseline"


@dataclass(frozen=True)
class StudySummary:
    """What the scores of a study say."""

    rows: list[ArmSummary]
    """An arm each, in the order of the study."""
    comparisons: Comparisons
    recommendation: Recommendation
    factors: list[FactorEffect]
    unit: Unit
    smallest_effect: float
    untrained: Untrained | None


def summarize(
    scores_by_arm: Mapping[str, Scores],
    *,
    references: Mapping[str, str] | None = None,
    coordinates: Coordinates | None = None,
    untrained: Untrained | None = None,
    metric: str = "score",
    unit: Unit = SHARE,
    smallest_effect: float = SMALLEST_EFFECT,
    higher_is_better: bool = True,
    num_looks: int = 1,
    remedy: str = "",
) -> StudySummary:
    """Returns the recommendation, and mean, interval and verdict of each arm.

    Args:
        scores_by_arm: for each arm the score of each seed; an arm without scores may be empty.
        references: the arm that each arm is compared with; an arm without one is compared with the
            best. The verdict of a pair does not depend on who is compared with whom.
        coordinates: of each arm, for the pooled effects of factors.
        untrained: what no training gives.
        metric: name of the score, for the sentences.
        unit: how scores are shown.
        smallest_effect: the smallest difference worth having.
        higher_is_better: False for distances and costs.
        num_looks: how often the growing results are judged in all.
        remedy: how to add seeds, for the recommendation.

    Raises:
        ValueError: for an unknown reference, or a score that is not finite.
    """
    chosen = dict(references or {})
    _check_arms(scores_by_arm, [*chosen, *chosen.values()])
    comparisons = compare_arms(
        scores_by_arm,
        smallest_effect=smallest_effect,
        higher_is_better=higher_is_better,
        num_looks=num_looks,
    )
    recommendation = recommend(
        scores_by_arm,
        comparisons,
        metric=metric,
        unit=unit,
        smallest_effect=smallest_effect,
        higher_is_better=higher_is_better,
        untrained=untrained,
        num_looks=num_looks,
        remedy=remedy,
    )
    beaten: Mapping[str, bool | None] = {}
    if untrained is not None:
        beaten = find_beaten(
            scores_by_arm,
            untrained.score,
            higher_is_better=higher_is_better,
            num_looks=num_looks,
        )
    rows = [
        _summarize_arm(arm, scores, comparisons, chosen, recommendation.best, beaten.get(arm), unit)
        for arm, scores in scores_by_arm.items()
    ]
    factors = pool_factors(
        scores_by_arm,
        coordinates or {},
        smallest_effect=smallest_effect,
        higher_is_better=higher_is_better,
        num_looks=num_looks,
    )
    return StudySummary(
        rows, comparisons, recommendation, factors, unit, smallest_effect, untrained
    )


def _check_arms(scores_by_arm: Mapping[str, Scores], named: Sequence[str]) -> None:
    for arm in named:
        if arm not in scores_by_arm:
            raise ValueError(
                f"baseline and references must be arms with an entry. Got {arm!r}."
                f"{suggest(arm, scores_by_arm)} The arms: {', '.join(scores_by_arm)}."
            )


def _summarize_arm(
    arm: str,
    scores: Scores,
    comparisons: Comparisons,
    references: Mapping[str, str],
    best: str,
    beats_untrained: bool | None,
    unit: Unit,
) -> ArmSummary:
    values = list(scores.values())
    several = len(values) > 1
    to_best = comparisons[arm, best] if best and arm != best else None
    # The reference of others is compared with the best arm too.
    is_reference = arm in references.values() and arm not in references
    reference = references.get(arm) or (best if best and not is_reference else "")
    comparison = comparisons[arm, reference] if reference and reference != arm else None
    text = describe_comparison(comparison, unit) if comparison else ""
    if not text:
        text = "best" if to_best is None else "baseline"
    if beats_untrained is False:
        text += "; worse than no training"
    return ArmSummary(
        arm=arm,
        num_seeds=len(values),
        mean=compute_mean(values) if values else None,
        interval=estimate_interval(values, is_share=unit.is_share) if several else None,
        comparison=comparison,
        to_best=to_best,
        beats_untrained=beats_untrained,
        text=text,
    )


def describe_comparison(comparison: Comparison, unit: Unit) -> str:
    """Returns a verdict in words, with the other arm, the size and the certainty."""
    other = comparison.right
    if comparison.difference is None or comparison.chance_better is None:
        return f"cannot tell from {other}: {comparison.reason}"
    size = f"{unit.show_difference(comparison.difference)}{unit.difference_name}"
    if comparison.interval is not None:
        low, high = (unit.show_difference(bound) for bound in comparison.interval)
        size += f", {low} to {high}"
    chance = name_chance(comparison.chance_better)
    if comparison.verdict == "no difference":
        return f"no difference worth having to {other} ({size}): {chance}"
    if comparison.verdict != "cannot tell":
        return f"{chance} than {other} ({size})"
    if comparison.reason:
        return f"cannot tell from {other} ({size}): {comparison.reason}"
    needed = (
        f"about {comparison.seeds_needed} seeds would decide"
        if comparison.seeds_needed
        else "no number of seeds up to 1,000 would decide"
    )
    return f"cannot tell from {other} yet ({size}): {chance}; {needed}"


_NOTES = (
    "Mean over seeds with its 95 % interval{unit}. A verdict (Welch's t-test) is given where the "
    "difference is among the discoveries of all {count} pairs of arms: at most 5 % of them are "
    "false, and a study without any difference gives a verdict in at most 5 % of cases. No "
    "difference worth having: less than {smallest}, by two one-sided tests. See docs/statistics.md."
)


def render_markdown(summary: StudySummary, *, metric: str) -> str:
    """Returns the recommendation and one line for each arm, with a note on how to read them."""
    unit = summary.unit
    lines = [
        summary.recommendation.text,
        "",
        f"| arm | seeds | {_escape(metric)} | verdict |",
        "|---|---:|---:|---|",
        *(_render_row(row, unit) for row in summary.rows),
    ]
    if summary.untrained is not None:
        score = f"{unit.show(summary.untrained.score)}{unit.name}"
        lines.append(f"| {_escape(summary.untrained.name)} | | {score} | no training |")
    note = _NOTES.format(
        unit=", in percent" if unit.is_share else "",
        count=len(summary.comparisons),
        smallest=f"{unit.factor * summary.smallest_effect:.3g}{unit.difference_name}",
    )
    return "\n".join([*lines, "", note, ""])


def _render_row(row: ArmSummary, unit: Unit) -> str:
    if row.mean is None:
        score = "none"
    elif row.interval is None:
        score = f"{unit.show(row.mean)} (no interval)"
    else:
        low, high = (unit.show(bound) for bound in row.interval)
        score = f"{unit.show(row.mean)} [{low}, {high}]"
    cells = [row.arm, str(row.num_seeds), score, row.text]
    return f"| {' | '.join(map(_escape, cells))} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
