"""The tables of a report, and the facts that reproduce it."""

import json
import platform
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dml_core.analysis.estimates import Interval
from dml_core.analysis.observations import Observations
from dml_core.analysis.summary import ArmSummary, StudySummary
from dml_core.config.image_changes import is_of_changed_images
from dml_core.data.duplicates import ACROSS_SPLITS, describe_leaks
from dml_core.data.prepared_info import load_info
from dml_core.data.records import DatasetError
from dml_core.measures.results import StudyScores
from dml_core.studies.metrics import list_metrics
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.table import read_trials
from tasks.report_page.panels import make_point
from tasks.report_page.style import NO_SCORE, name_metric, show_number, unit_of
from tasks.study import StudyContext, StudyRequest, read_stage_seconds

MARKS = {
    "best": "★",
    "better": "▲",
    "worse": "▼",
    "no difference": "=",
    "cannot tell": "?",
    "baseline": "•",
    "no training": "·",
}
_LOST = ("failed", "diverged", "collapsed")


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    note: str = ""
    """Smaller text below."""
    key: float | str = ""
    """Sort key; empty cells come last."""
    kind: str = "number"
    """Its CSS class: name, number or a verdict's."""


@dataclass(frozen=True)
class Table:
    """A table that can be sorted by any column."""

    caption: str
    headings: list[str]
    rows: list[list[Cell]]


_BUDGET_COLUMNS = ("chosen", "tries", "pruned", "failed", "at a bound")


def make_arm_table(
    summary: StudySummary, budget: Mapping[str, Mapping[str, Any]] | None, *, metric: str
) -> Table:
    """Returns one row an arm: score, difference to the best, verdict, and what finding it took.

    Without a budget, as for runs of other code, the table ends with the number of seeds.
    """
    points = unit_of(metric).difference_name.strip()
    to_best = f"to the best{f' ({points})' if points else ''}"
    headings = ["arm", _head(metric), to_best, "verdict", "seeds"]
    if budget is None:
        rows = [_make_score_cells(row, {}, metric) for row in summary.rows]
    else:
        headings[-1:] = ["chosen", "seeds", *_BUDGET_COLUMNS[1:]]
        rows = [_make_arm_row(row, budget.get(row.arm, {}), metric) for row in summary.rows]
    if summary.untrained is not None:
        rows.append(_make_untrained_row(summary, len(headings), metric))
    headings, rows = _leave_out_empty(headings, rows)
    return Table("Every arm with its 95 % interval over the seeds", headings, rows)


def _leave_out_empty(
    headings: list[str], rows: list[list[Cell]]
) -> tuple[list[str], list[list[Cell]]]:
    """Leaves out the columns of the budget that are empty or zero for every arm, to save room."""
    kept = [
        place
        for place, heading in enumerate(headings)
        if heading not in _BUDGET_COLUMNS or any(row[place].text not in ("", "0") for row in rows)
    ]
    return [headings[place] for place in kept], [[row[place] for place in kept] for row in rows]


def make_factor_table(summary: StudySummary, *, metric: str) -> Table | None:
    """Returns the pooled effect of each value of each factor; None where nothing can be pooled."""
    if not summary.factors:
        return None
    points = unit_of(metric).difference_name.strip()
    headings = ["factor", "value", f"difference{f' ({points})' if points else ''}", "verdict"]
    rows = []
    for effect in summary.factors:
        bounds = (show_number(bound, metric, is_difference=True) for bound in effect.interval)
        size = show_number(effect.difference, metric, is_difference=True)
        rows.append(
            [
                _name(effect.key),
                Cell(str(effect.value), f"against {effect.best}", str(effect.value), kind="name"),
                Cell(size, " to ".join(bounds), effect.difference),
                Cell(
                    f"{MARKS[effect.verdict]} {effect.verdict}",
                    f"pooled over {effect.num_pairs} pairs of arms",
                    effect.verdict,
                    kind=_kind(effect.verdict),
                ),
            ]
        )
    return Table("Each factor, pooled over all that else differs", headings, rows)


def make_metric_table(study: ResolvedStudy, observations: Observations) -> Table | None:
    """Returns every test metric of every arm; None where there is none.

    Scores of changed images are many and drawn as curves; only the CSV files list them.
    """
    found = {
        name
        for by_seed in observations.scores.values()
        for each in by_seed.values()
        for name in each
    }
    ordered = [n for arm in study.arms for n in list_metrics(study.arm_config(arm.name), "test")]
    names = [n for n in dict.fromkeys(ordered) if n in found and not is_of_changed_images(n)]
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


def _make_score_cells(row: ArmSummary, winner: Mapping[str, Any], metric: str) -> list[Cell]:
    return [
        _name(row.arm),
        _make_mean_cell(row.mean, row.interval, metric),
        _make_difference_cell(row, metric),
        _make_verdict_cell(row, winner),
        _count(row.num_seeds),
    ]


def _make_arm_row(row: ArmSummary, winner: Mapping[str, Any], metric: str) -> list[Cell]:
    *scores, seeds = _make_score_cells(row, winner, metric)
    return [*scores, _make_values_cell(winner), seeds, *_make_budget_cells(winner)]


def _make_untrained_row(summary: StudySummary, num_columns: int, metric: str) -> list[Cell]:
    assert summary.untrained is not None
    score = summary.untrained.score
    cells = [
        _name(summary.untrained.name),
        Cell(show_number(score, metric), "", score),
        Cell(""),
        Cell(f"{MARKS['no training']} no training", kind=_kind("no training")),
    ]
    return cells + [Cell("")] * (num_columns - len(cells))


def _make_values_cell(winner: Mapping[str, Any]) -> Cell:
    values = winner.get("values") or {}
    listed = [f"{key.rpartition('.')[2]} {_show_value(value)}" for key, value in values.items()]
    return Cell(", ".join(listed), kind="name")


def _show_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _kind(verdict: str) -> str:
    return f"verdict-cell {verdict.replace(' ', '-')}"


def _make_mean_cell(mean: float | None, interval: Interval | None, metric: str) -> Cell:
    if mean is None:
        return Cell(NO_SCORE, kind="missing")
    note = "no interval"
    if interval is not None:
        note = " to ".join(show_number(bound, metric) for bound in interval)
    return Cell(show_number(mean, metric), note, mean)


def _make_difference_cell(row: ArmSummary, metric: str) -> Cell:
    found = row.to_best
    if found is None or found.difference is None:
        return Cell("")
    note = ""
    if found.interval is not None:
        bounds = (show_number(bound, metric, is_difference=True) for bound in found.interval)
        note = " to ".join(bounds)
    return Cell(show_number(found.difference, metric, is_difference=True), note, found.difference)


def _make_verdict_cell(row: ArmSummary, winner: Mapping[str, Any]) -> Cell:
    word, _, reason = row.text.partition(": ")
    note = "; ".join(filter(None, (reason, str(winner.get("reason") or ""))))
    return Cell(f"{MARKS[row.verdict]} {word}", note, row.verdict, kind=_kind(row.verdict))


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


_WRITTEN_BY_RUNS = ("dvc.lock", "studies/tracked.json")
"""Files that a run itself changes and no score depends on."""
PACKAGES = {"torch": "torch", "faiss": "faiss-cpu", "dml": "dml"}


@dataclass(frozen=True)
class Fact:
    """One line of how to reproduce a report."""

    name: str
    value: str


def collect_facts(context: StudyContext, scores: StudyScores) -> list[Fact]:
    """Returns the facts that a reader needs to reproduce the scores."""
    sweep = json.loads((context.sweep_folder / "sweep.json").read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {value}" for name, value in read_versions().items())
    facts = [
        Fact("command", make_command(context.request)),
        Fact("git commit", describe_commit(Path())),
        Fact("data hash", scores.data_hash),
        Fact("split hash", scores.split_hash),
        Fact("leakage", describe_leakage(context)),
        Fact("study digest", scores.digest),
        Fact("training code", str(sweep.get("code", ""))),
        Fact("versions", versions),
        Fact("training", describe_training(context.sweep_folder / "trials.parquet")),
        Fact("wall clock", describe_seconds(read_stage_seconds(context))),
    ]
    return [fact for fact in facts if fact.value]


def describe_leakage(context: StudyContext) -> str:
    """Returns which images the splits share; empty for none, and without the data."""
    parts = []
    for config in context.datasets:
        try:
            found = load_info(config.prepared_path).duplicates
        except DatasetError:
            continue
        if not found:
            continue
        alike = (found["alike"] or {}).get(ACROSS_SPLITS, 0)
        texts = [describe_leaks(found)] if found["equal"][ACROSS_SPLITS] else []
        texts += [f"{alike:,} pairs look alike across splits"] if alike else []
        parts += [f"{config.folder_name}: {text}" for text in texts]
    return "; ".join(parts)


def make_command(request: StudyRequest, command: str = "run", *arguments: str) -> str:
    """Returns a command for a study as a user types it; by default the one that produces it."""
    parts = ["dml", command, request.study, *arguments]
    if request.profile:
        parts += ["--profile", request.profile]
    if request.params != "params.yaml":
        parts += ["--params", request.params]
    for assignment in request.overrides:
        parts += ["--set", assignment]
    return shlex.join(parts)


def describe_commit(project: Path) -> str:
    """Returns the commit of the code, and whether it has uncommitted changes; empty without git."""
    commit = _ask_git(project, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    others = [f":(exclude){name}" for name in _WRITTEN_BY_RUNS]
    status = ("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    is_changed = bool(_ask_git(project, *status))
    return f"{commit} with changes that are not committed" if is_changed else commit


def read_versions() -> dict[str, str]:
    """Returns the versions of Python and of the numerical packages."""
    found = {"python": platform.python_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def describe_training(trials: Path) -> str:
    """Returns the number of trials and their total training time."""
    if not trials.is_file():
        return ""
    records = read_trials(trials)
    seconds = sum(record.train_seconds for record in records)
    return f"{len(records)} trials, {seconds:,.0f} s of training altogether"


def describe_seconds(seconds: dict[str, float]) -> str:
    """Returns the duration of each stage's last run, and their sum."""
    if not seconds:
        return ""
    listed = ", ".join(f"{stage} {value:,.0f} s" for stage, value in seconds.items())
    return f"{sum(seconds.values()):,.0f} s ({listed})"


def _ask_git(project: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(project), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
