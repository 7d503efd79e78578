"""Draws what a study scored over time: the champion with its interval, by commit and data."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dml_core.analysis.history import Result
from dml_core.analysis.intervals import estimate_mean
from dml_core.studies.metrics import Unit, unit_of
from tasks.report_page.figure import save_canvas
from tasks.report_page.style import COLORS, INK, MARKERS, MUTED, plain, report_style

MOST_DRAWN = 60
"""Older results are left out, or the names of commits would lie over each other."""


def draw_history(results: Sequence[Result], target: Path, *, title: str) -> list[Path]:
    """Writes the drawing as PNG and SVG, and returns both.

    Args:
        results: of one study, the oldest first; those of the newest one's metric are drawn.
        target: path without an ending.
        title: above the drawing.
    """
    shown = [r for r in results if r.metric == results[-1].metric][-MOST_DRAWN:]
    unit = unit_of(shown[-1].metric)
    with report_style() as plt:
        width = max(6.0, min(14.0, 0.45 * len(shown) + 2.5))
        canvas, axes = plt.subplots(figsize=(width, 4.2), layout="constrained")
        _draw_arms(axes, shown, unit)
        hashes = list(dict.fromkeys(result.data_hash for result in shown))
        for number, data_hash in enumerate(hashes):
            _draw_champions(axes, shown, data_hash, number, unit)
        _mark_accepted(axes, shown, unit)
        _name_axes(axes, shown, unit)
        axes.set_title(plain(title))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        save_canvas(canvas, target)
    return [target.with_suffix(".png"), target.with_suffix(".svg")]


def _draw_arms(axes: Any, shown: Sequence[Result], unit: Unit) -> None:
    """The means of the other arms, as small grey points."""
    points = [
        (place, unit.factor * fmean(scores.values()))
        for place, result in enumerate(shown)
        for arm, scores in result.scores.items()
        if arm != result.champion and scores
    ]
    if points:
        places, means = zip(*points, strict=True)
        axes.scatter(places, means, s=8, color=MUTED, alpha=0.5, label="other arms", linewidths=0)


def _draw_champions(
    axes: Any, shown: Sequence[Result], data_hash: str, number: int, unit: Unit
) -> None:
    for place, result in enumerate(shown):
        if result.data_hash != data_hash:
            continue
        low, mean, high = (unit.factor * value for value in champion_interval(result))
        first = next(p for p, r in enumerate(shown) if r.data_hash == data_hash)
        axes.errorbar(
            [place], [mean], yerr=[[mean - low], [high - mean]], capsize=2.5,
            color=COLORS[number % len(COLORS)], marker=MARKERS[number % len(MARKERS)],
            label=f"data {data_hash[:12]}" if place == first else None,
        )  # fmt: skip


def champion_interval(result: Result) -> tuple[float, float, float]:
    """Returns low, mean and high of the champion; all the same where one seed has no interval."""
    values = list(result.scores.get(result.champion, {}).values())
    if len(values) < 2:
        only = values[0] if values else float("nan")
        return only, only, only
    found = estimate_mean(np.array(values))
    return float(found.low), float(found.mean), float(found.high)


def _mark_accepted(axes: Any, shown: Sequence[Result], unit: Unit) -> None:
    points = [
        (place, unit.factor * champion_interval(result)[1])
        for place, result in enumerate(shown)
        if result.accepted
    ]
    if points:
        places, means = zip(*points, strict=True)
        axes.scatter(
            places, means, s=110, facecolors="none", edgecolors=INK, label="accepted", zorder=3
        )


def _name_axes(axes: Any, shown: Sequence[Result], unit: Unit) -> None:
    names = [f"{result.time[:10]}\n{result.commit[:8] or 'no commit'}" for result in shown]
    axes.set_xticks(range(len(shown)), [_plain_lines(name) for name in names], rotation=90)
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_ylabel(
        f"champion's {shown[-1].metric}{f' ({unit.name.strip()})' if unit.name else ''}"
    )


def _plain_lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.splitlines())
