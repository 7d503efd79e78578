"""Draws a study's figure: one metric over its arms, with intervals."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml_core.studies.definition import Figure

# Okabe and Ito's colours, told apart also by colour-blind people.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@dataclass(frozen=True)
class Point:
    """One arm in the figure."""

    arm: str
    x: Any
    """Its value of the figure's x key, or its name."""
    group: str
    mean: float
    low: float
    high: float


def draw_figure(points: Sequence[Point], figure: Figure, *, title: str, target: Path) -> None:
    """Writes the figure to a PNG; bars for names, lines with intervals for numbers."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    width = max(6.0, 0.45 * len(points) + 2)
    canvas, axes = plt.subplots(figsize=(width, 4.2), dpi=120, layout="constrained")
    if figure.kind in ("line", "lines"):
        _draw_lines(axes, points, log_x=figure.log_x)
    else:
        _draw_bars(axes, points)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(f"{figure.y} (mean and 95 % interval)")
    axes.set_title(textwrap.fill(title, int(width * 12)), loc="left", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    target.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(target)
    plt.close(canvas)


def _draw_bars(axes: Any, points: Sequence[Point]) -> None:
    positions = range(len(points))
    groups = sorted({point.group for point in points})
    colors = [COLORS[groups.index(point.group) % len(COLORS)] for point in points]
    errors = [
        [max(point.mean - point.low, 0) for point in points],
        [max(point.high - point.mean, 0) for point in points],
    ]
    axes.bar(positions, [point.mean for point in points], color=colors, alpha=0.85)
    axes.errorbar(
        positions, [point.mean for point in points], yerr=errors, fmt="none", ecolor="black",
        capsize=3,
    )  # fmt: skip
    axes.set_xticks(list(positions), [str(point.x) for point in points], rotation=35, ha="right")
    lows = [point.low for point in points]
    highs = [point.high for point in points]
    span = max(highs) - min(lows)
    # Bars from zero would hide differences of a few points; the axis says where it starts.
    axes.set_ylim(max(0.0, min(lows) - 0.3 * span), max(highs) + 0.1 * span or None)


def _draw_lines(axes: Any, points: Sequence[Point], *, log_x: bool) -> None:
    groups = sorted({point.group for point in points})
    for number, group in enumerate(groups):
        line = sorted((p for p in points if p.group == group), key=lambda p: float(p.x))
        xs = [float(point.x) for point in line]
        color = COLORS[number % len(COLORS)]
        axes.plot(xs, [p.mean for p in line], marker="o", color=color, label=group or None)
        axes.fill_between(xs, [p.low for p in line], [p.high for p in line], color=color, alpha=0.2)
    if log_x:
        axes.set_xscale("log")
    if any(groups):
        axes.legend(fontsize=8)
