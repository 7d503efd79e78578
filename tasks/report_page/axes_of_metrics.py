"""Axes that carry a metric: their label, their unit and where they begin."""

import math
from collections.abc import Sequence
from typing import Any

from tasks.report_page.labels import unit_of
from tasks.report_page.panels import Point
from tasks.report_page.style import NO_SCORE


def find_limits(points: Sequence[Point], *, metric: str, from_zero: bool) -> tuple[float, float]:
    """Returns where an axis begins and ends so that the intervals are seen.

    Shares stay within 0 and 1 though an interval of two seeds may not: the rest of it is cut off.
    """
    scored = [point for point in points if point.mean is not None]
    lows = [p.mean if p.low is None else p.low for p in scored if p.mean is not None]
    highs = [p.mean if p.high is None else p.high for p in scored if p.mean is not None]
    if not lows:
        return 0.0, 1.0
    low, high = min(lows), max(highs)
    unit = unit_of(metric)
    if unit.is_share:
        low, high = max(low, 0.0), min(high, 1.0)
    span = (high - low) or abs(high) or 1.0
    start, stop = low - 0.12 * span, high + 0.08 * span
    if low >= 0:
        start = max(start, 0.0)
    if from_zero and low >= 0:
        start = _start_bars(start, low, high, metric=metric)
        stop = max(stop, high + 0.08 * (high - start))
    return start, min(stop, 1.0) if unit.is_share and high < 1 else stop


def _start_bars(start: float, low: float, high: float, *, metric: str) -> float:
    """Bars begin at zero, but for scores that are all long and alike, whose differences would
    not be seen; times and sizes are compared by their ratio and always begin at zero."""
    if metric.startswith("cost.") or low <= 0.6 * high:
        return 0.0
    step = 0.05 if unit_of(metric).is_share else 5.0
    rounded = math.floor(start / step) * step
    return rounded if rounded > 0 else start


def set_unit(axis: Any, metric: str) -> None:
    """Lets an axis count in the metric's unit; what is drawn stays as it was computed."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.MaxNLocator(nbins=5))
    factor = unit_of(metric).factor
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{factor * value:.6g}"))


def mark_missing(axes: Any, x: float, *, color: str, number: int = 0) -> None:
    """Puts a cross at the foot of the axes where a point has no score."""
    foot = 0.03 + 0.05 * number
    axes.plot(
        [x], [foot], marker="x", color=color, markersize=6, markeredgewidth=1.6, linestyle="none",
        transform=axes.get_xaxis_transform(), clip_on=False, label="_missing",
    )  # fmt: skip
    axes.annotate(
        NO_SCORE, (x, foot), xycoords=axes.get_xaxis_transform(), xytext=(5, -2),
        textcoords="offset points", fontsize=6.5, color=color,
    )  # fmt: skip
