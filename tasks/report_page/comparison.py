"""A comparison of arms from anywhere, as lines and as a page: studies, or runs of other code."""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dml_core.analysis.summary import StudySummary, summarize
from dml_core.analysis.verdicts import SMALLEST_EFFECT, relative_effect
from dml_core.studies.definition import Figure
from tasks.report_page.answer import READING, say_arm
from tasks.report_page.figure import (
    PAGE,
    PHONE,
    draw_ours,
    measure_ours,
    save_canvas,
    to_svg,
    write_numbers,
)
from tasks.report_page.page import Picture, embed_figure, write_page
from tasks.report_page.panels import Panel, Series, make_point
from tasks.report_page.style import report_style, spell_metric, unit_of
from tasks.report_page.tables import Fact, make_arm_table

FOLDER = "compare"
"""Below the folder of the reports."""
_LONGEST_NAME = 80


@dataclass(frozen=True)
class ComparedArms:
    """The scores of arms, and where they come from."""

    kind: str
    """What was compared, such as `Studies`."""
    name: str
    """Names the page and its file."""
    metric: str
    scores: Mapping[str, Mapping[int, float]]
    """By arm and seed."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The arm that an arm is compared with; by default the best."""
    higher_is_better: bool = True
    smallest_effect: float | None = None
    """None takes a point of a share, or 2 % of the mean of another metric."""
    notes: tuple[str, ...] = ()
    """What a reader must know: runs that were left out, data that differ."""
    facts: tuple[Fact, ...] = ()
    compare_url: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result: its lines for a terminal, and its page."""

    summary: StudySummary
    lines: list[str]
    page: Path


def write_comparison(compared: ComparedArms, reports_root: Path) -> Comparison:
    """Writes the page of a comparison and returns it with its lines; running it twice is safe."""
    summary = _summarize(compared)
    target = reports_root / FOLDER / f"{_to_file_name(compared.name)}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dml-compare-") as scratch:
        figure = _draw(compared, Path(scratch) / "figure")
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        write_page(partial, figures=[figure], pictures=[], content=_make_content(compared, summary))
        os.replace(partial, target)
    arms = [say_arm(row, compared.metric) for row in summary.rows]
    lines = [summary.recommendation.text, *arms, *compared.notes]
    return Comparison(summary, lines, target)


def _summarize(compared: ComparedArms) -> StudySummary:
    unit = unit_of(compared.metric)
    smallest = compared.smallest_effect
    if smallest is None:
        smallest = SMALLEST_EFFECT if unit.is_share else relative_effect(compared.scores)
    return summarize(
        compared.scores,
        references=compared.references,
        metric=spell_metric(compared.metric),
        unit=unit,
        smallest_effect=smallest,
        higher_is_better=compared.higher_is_better,
    )


def _make_content(compared: ComparedArms, summary: StudySummary) -> dict[str, object]:
    unit = summary.unit
    smallest = f"{unit.factor * summary.smallest_effect:.3g}{unit.difference_name}"
    better = "Higher" if compared.higher_is_better else "Lower"
    facts = [
        *compared.facts,
        Fact("metric", spell_metric(compared.metric)),
        Fact(
            "direction", f"{better} is better; the smallest difference worth having is {smallest}"
        ),
        *(Fact("note", note) for note in compared.notes),
    ]
    return {
        "kind": compared.kind,
        "study": compared.name,
        "source": "",
        "question": f"Which arm has the best {spell_metric(compared.metric)}?",
        # A number and its unit stay on one line.
        "headline": summary.recommendation.text.replace(" %", "\N{NO-BREAK SPACE}%"),
        "claims": [],
        "arm_table": make_arm_table(summary, None, metric=compared.metric),
        "factor_table": None,
        "metric_table": None,
        "reading": READING,
        "facts": facts,
        # Arms of several studies have no one model.
        "take_away": None,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "compare_url": compared.compare_url,
    }


def _draw(compared: ComparedArms, stem: Path) -> Picture:
    scores = compared.scores.items()
    points = tuple(make_point(arm, by_seed, compared.metric) for arm, by_seed in scores)
    panel = Panel(compared.metric, (Series("", points),))
    figure = Figure(kind="bar", x="arm", y=(compared.metric,))
    with report_style() as plt:
        canvases = []
        for layout in (PAGE, PHONE):
            size = (layout.width_inches, measure_ours([panel], figure, layout))
            canvases.append(plt.figure(figsize=size, layout="constrained"))
            draw_ours(canvases[-1], [panel], figure, layout)
        save_canvas(canvases[0], stem)
        narrow = to_svg(canvases[1])
    write_numbers([panel], stem.with_suffix(".csv"))
    return embed_figure(
        stem,
        name=_to_file_name(compared.name),
        caption="Means over the seeds; whiskers are 95 % intervals.",
        alt=f"{spell_metric(compared.metric)} of every arm; its numbers are in the CSV file.",
        narrow=narrow,
    )


def _to_file_name(name: str) -> str:
    """Returns a name of letters, digits, dots, dashes and @, of a length that disks accept."""
    plain = re.sub(r"[^\w.@-]+", "-", name, flags=re.ASCII).strip("-.")
    return plain[:_LONGEST_NAME] or "comparison"


def describe_left_out(left_out: Mapping[str, int], num_runs: int) -> Sequence[str]:
    """Returns a line that counts the runs that do not count, by reason; none if all count."""
    if not left_out:
        return ()
    total = sum(left_out.values())
    listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(left_out.items()))
    return (f"{num_runs:,} of {num_runs + total:,} runs count; left out: {listed}.",)
