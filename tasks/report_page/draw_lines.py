"""Lines with bands: a metric over numbers, one line for each series."""

import math
from collections.abc import Sequence
from typing import Any

from tasks.report_page.axes_of_metrics import find_limits, mark_missing, set_unit
from tasks.report_page.labels import show_value
from tasks.report_page.panels import Panel, Point, Series, is_number
from tasks.report_page.style import MISSING, NO_SCORE, line_style, plain

_MANY_POINTS = 14


def draw_lines(axes: Any, panel: Panel, *, log_x: bool = False) -> list[Any]:
    """Draws a panel and returns the handles of its legend, one a series, missing ones included."""
    xs = panel.xs
    is_numeric = all(is_number(x) for x in xs)
    handles = []
    for number, series in enumerate(panel.series):
        style = line_style(number)
        if not series.has_scores:
            handles += _draw_nothing(axes, series)
        else:
            handles += [_draw_line(axes, series, xs if not is_numeric else None, style)]
        _mark_gaps(axes, series, xs if not is_numeric else None, style["color"], number)
    _set_ticks(axes, xs, is_numeric=is_numeric, log_x=log_x)
    # A cost is read as a share: seen from its own smallest value, nothing looks like everything.
    is_cost = panel.metric.startswith("cost.")
    axes.set_ylim(*find_limits(panel.points, metric=panel.metric, from_zero=is_cost))
    set_unit(axes.yaxis, panel.metric)
    return handles


def _place(point: Point, names: Sequence[Any] | None) -> float:
    return float(point.x) if names is None else float(names.index(point.x))


def _draw_line(
    axes: Any, series: Series, names: Sequence[Any] | None, style: dict[str, Any]
) -> Any:
    points = [point for point in series.points if point.mean is not None]
    places = [_place(point, names) for point in points]
    (line,) = axes.plot(
        places,
        [point.mean for point in points],
        label=plain(series.name),
        markevery=max(1, len(points) // _MANY_POINTS),
        **style,
    )
    lows, highs = ([_bound(point, side) for point in points] for side in ("low", "high"))
    axes.fill_between(places, lows, highs, color=style["color"], alpha=0.16, linewidth=0)
    if len(points) <= _MANY_POINTS:
        axes.vlines(places, lows, highs, color=style["color"], linewidth=0.9, alpha=0.75)
    return line


def _bound(point: Point, side: str) -> float | None:
    bound: float | None = getattr(point, side)
    return point.mean if bound is None else bound


def _draw_nothing(axes: Any, series: Series) -> list[Any]:
    name = f"{series.name} ({NO_SCORE})".strip()
    return list(axes.plot([], [], color=MISSING, linestyle=":", marker="x", label=plain(name)))


def _mark_gaps(
    axes: Any, series: Series, names: Sequence[Any] | None, color: str, number: int
) -> None:
    for point in series.points:
        if point.mean is None and point.x is not None:
            mark_missing(axes, _place(point, names), color=color, number=number)


def _set_ticks(axes: Any, xs: Sequence[Any], *, is_numeric: bool, log_x: bool) -> None:
    if not is_numeric:
        axes.set_xticks(range(len(xs)), [plain(show_value(x)) for x in xs])
        axes.set_xlim(-0.4, len(xs) - 0.6)
        return
    if log_x:
        axes.set_xscale("log")
    spec = axes.get_subplotspec()
    is_narrow = spec is not None and spec.get_gridspec().ncols > 1
    shown = _keep_apart(xs, log_x=log_x, gap=0.09 if is_narrow else 0.045)
    if log_x or (1 < len(xs) <= 12 and len(shown) == len(xs)):
        axes.set_xticks(shown, [show_value(x) for x in shown])
        axes.set_xticks([], minor=True)


def _keep_apart(xs: Sequence[float], *, log_x: bool, gap: float) -> list[float]:
    """Returns the places whose labels leave each other room, as a share of the axis; both ends."""
    places = [math.log(x) for x in xs] if log_x else list(map(float, xs))
    span = (places[-1] - places[0]) if places else 0.0
    kept: list[int] = []
    for number, place in enumerate(places):
        is_last = number == len(places) - 1
        if not kept or place - places[kept[-1]] >= gap * span:
            kept.append(number)
        elif is_last:
            kept = [*kept[:-1], number] if len(kept) > 1 else [*kept, number]
    return [xs[number] for number in kept]
