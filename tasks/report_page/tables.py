"""The tables of a report: cells with what is shown and what is sorted by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml_core.analysis.observations import Observations
from dml_core.analysis.summary import ArmSummary, Interval
from dml_core.studies.metrics import list_metrics
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.labels import name_metric, show_number, unit_of
from tasks.report_page.panels import make_point
from tasks.report_page.style import NO_SCORE

MARKS = {"better": "▲", "worse": "▼", "cannot tell": "?", "baseline": "•"}
_LOST = ("failed", "diverged", "collapsed")


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str
    note: str = ""
    """Smaller, below."""
    key: float | str = ""
    """What it is sorted by; empty cells come last."""
    kind: str = "number"
    """Its class in the page: name, number or a verdict's."""


@dataclass(frozen=True)
class Table:
    """A table that sorts by any column."""

    caption: str
    headings: list[str]
    rows: list[list[Cell]]


def make_arm_table(
    summaries: Sequence[ArmSummary], budget: Mapping[str, Mapping[str, Any]], *, metric: str
) -> Table:
    """Returns one row an arm: score, difference, verdict, and what finding it took."""
    references = {s.difference.reference for s in summaries if s.difference is not None}
    is_one = len(references) == 1
    points = unit_of(metric).difference_name.strip()
    headings = [
        "arm",
        _head(metric),
        f"difference{f' to {min(references)}' if is_one else ''}{f' ({points})' if points else ''}",
        "verdict",
        "seeds",
        "tries",
        "pruned",
        "failed",
        "at a bound",
    ]
    rows = [
        _make_arm_row(s, budget.get(s.arm, {}), metric, names_reference=not is_one)
        for s in summaries
    ]
    return Table("Every arm with its 95 % interval over the seeds", headings, rows)


def make_metric_table(study: ResolvedStudy, observations: Observations) -> Table | None:
    """Returns every test metric of every arm; None where there is none.

    Scores of occluded images are many and drawn as curves, so they are left to the CSV files.
    """
    found = {
        name
        for by_seed in observations.scores.values()
        for each in by_seed.values()
        for name in each
    }
    ordered = [n for arm in study.arms for n in list_metrics(study.arm_config(arm.name), "test")]
    names = [n for n in dict.fromkeys(ordered) if n in found and not n.startswith("occluded_")]
    if not names:
        return None
    rows = []
    for arm in study.arms:
        cells = [_make_score_cell(observations, arm.name, f"test.{name}") for name in names]
        rows.append([_name(arm.name), *cells])
    headings = ["arm", *(_head(f"test.{name}") for name in names)]
    return Table("Every metric on the test classes, mean over the seeds", headings, rows)


def _head(metric: str) -> str:
    unit = unit_of(metric).name.strip()
    return f"{name_metric(metric)} ({unit})" if unit else name_metric(metric)


def _make_score_cell(observations: Observations, arm: str, metric: str) -> Cell:
    point = make_point(arm, observations.scalars(metric).get(arm, {}))
    if point.mean is None:
        return Cell(NO_SCORE, kind="missing")
    reach = "" if point.high is None else f"± {show_number(point.high - point.mean, metric)}"
    return Cell(show_number(point.mean, metric), reach, point.mean)


def _make_arm_row(
    summary: ArmSummary, winner: Mapping[str, Any], metric: str, *, names_reference: bool
) -> list[Cell]:
    return [
        _name(summary.arm),
        _make_mean_cell(summary.mean, summary.interval, metric),
        _make_difference_cell(summary, metric, names_reference=names_reference),
        _make_verdict_cell(summary, winner),
        _count(summary.num_seeds),
        *_make_budget_cells(winner),
    ]


def _make_mean_cell(mean: float | None, interval: Interval | None, metric: str) -> Cell:
    if mean is None:
        return Cell(NO_SCORE, kind="missing")
    note = "no interval"
    if interval is not None:
        note = " to ".join(show_number(bound, metric) for bound in interval)
    return Cell(show_number(mean, metric), note, mean)


def _make_difference_cell(summary: ArmSummary, metric: str, *, names_reference: bool) -> Cell:
    difference = summary.difference
    if difference is None or difference.mean is None:
        return Cell("")
    note = f"to {difference.reference}" if names_reference else ""
    if difference.interval is not None:
        bounds = (show_number(bound, metric, is_difference=True) for bound in difference.interval)
        note = f"{' to '.join(bounds)} {note}".strip()
    return Cell(show_number(difference.mean, metric, is_difference=True), note, difference.mean)


def _make_verdict_cell(summary: ArmSummary, winner: Mapping[str, Any]) -> Cell:
    word, _, reason = summary.text.partition(": ")
    note = "; ".join(filter(None, (reason, str(winner.get("reason") or ""))))
    text = f"{MARKS[summary.verdict]} {word}"
    return Cell(
        text, note, summary.verdict, kind=f"verdict-cell {summary.verdict.replace(' ', '-')}"
    )


def _make_budget_cells(winner: Mapping[str, Any]) -> list[Cell]:
    spent = int(winner.get("spent") or 0)
    lost = {name: int(winner.get(name) or 0) for name in _LOST}
    listed = ", ".join(f"{count} {name}" for name, count in lost.items() if count)
    bounds = [f"{k.rpartition('.')[2]} {b}" for k, b in (winner.get("at_bound") or {}).items()]
    tuned = Cell(str(spent), key=spent) if spent else Cell("0", "nothing to tune", key=0)
    return [
        tuned,
        _count(int(winner.get("pruned") or 0)),
        Cell(str(sum(lost.values())), listed, sum(lost.values())),
        Cell(str(len(bounds)), ", ".join(bounds), len(bounds)),
    ]


def _name(text: str) -> Cell:
    return Cell(text, key=text, kind="name")


def _count(number: int) -> Cell:
    return Cell(str(number), key=number)
