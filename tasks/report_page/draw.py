"""Draws a metric as lines, bars or cells, on axes with its unit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.report_page.panels import NO_TRAINING, Panel, Point, Series, is_number
from tasks.report_page.style import (
    COLOR_MAP,
    INK,
    MISSING,
    MUTED,
    NO_SCORE,
    bar_style,
    line_style,
    plain,
    show_number,
    show_value,
    unit_of,
)


def find_limits(points: Sequence[Point], *, metric: str, from_zero: bool) -> tuple[float, float]:
    """Returns the limits of an axis that show all intervals.

    Shares stay within 0 and 1: an interval of two seeds may be wider and is cut off there.
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
    """Returns where bars start: at zero, except where scores are high and similar.

    Their differences would be invisible. Times and sizes are compared by ratio and start at zero.
    """
    if metric.startswith("cost.") or low <= 0.6 * high:
        return 0.0
    step = 0.05 if unit_of(metric).is_share else 5.0
    rounded = math.floor(start / step) * step
    return rounded if rounded > 0 else start


def set_unit(axis: Any, metric: str) -> None:
    """Labels an axis in the metric's unit; the drawn values do not change."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.MaxNLocator(nbins=5))
    factor = unit_of(metric).factor
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{factor * value:.6g}"))


def mark_missing(axes: Any, x: float, *, color: str, number: int = 0) -> None:
    """Draws a cross at the bottom of the axes where a point has no score."""
    foot = 0.03 + 0.05 * number
    axes.plot(
        [x], [foot], marker="x", color=color, markersize=6, markeredgewidth=1.6, linestyle="none",
        transform=axes.get_xaxis_transform(), clip_on=False, label="_missing",
    )  # fmt: skip
    axes.annotate(
        NO_SCORE, (x, foot), xycoords=axes.get_xaxis_transform(), xytext=(5, -2),
        textcoords="offset points", fontsize=6.5, color=color,
    )  # fmt: skip


_SHORT_NAME = 11
_FEW_BARS = 9


def is_horizontal(panel: Panel, *, num_upright: int = _FEW_BARS) -> bool:
    """Returns whether bars are horizontal, because their names are many or long.

    Args:
        panel: the bars.
        num_upright: how many vertical bars there is room for.
    """
    longest = max((len(show_value(x)) for x in panel.xs), default=0)
    return len(panel.xs) > num_upright or longest > _SHORT_NAME


def say_start(axes: Any, metric: str, *, horizontal: bool) -> str:
    """Returns a note for the label of bars that do not start at zero."""
    start = (axes.get_xlim() if horizontal else axes.get_ylim())[0]
    if start == 0:
        return ""
    unit = unit_of(metric)
    shown = f"{unit.factor * start:.3g}{unit.name}"
    return f"\n(axis starts at {shown})"


@dataclass(frozen=True)
class _Slot:
    """A bar's position across the axis."""

    center: float
    width: float


def draw_bars(axes: Any, panel: Panel, *, horizontal: bool) -> list[Any]:
    """Draws a panel and returns its legend handles, one a series.

    A bar without a score keeps its position, hatched and labelled.
    """
    from matplotlib.patches import Patch

    xs = panel.xs
    start, stop = find_limits(panel.points, metric=panel.metric, from_zero=True)
    is_dodged = len(panel.points) > len(xs)
    width = 0.8 / len(panel.series) if is_dodged else 0.7
    for number, series in enumerate(panel.series):
        shift = (number - (len(panel.series) - 1) / 2) * width if is_dodged else 0.0
        for point in series.points:
            slot = _Slot(xs.index(point.x) + shift, width * 0.92)
            _draw_bar(axes, point, slot, panel.metric, (start, stop), number, horizontal)
    _set_axes(axes, panel, (start, stop), horizontal=horizontal)
    draw_untrained(axes, panel, horizontal=horizontal)
    return [
        Patch(**bar_style(number), label=plain(series.name))
        for number, series in enumerate(panel.series)
    ]


def _draw_bar(
    axes: Any,
    point: Point,
    slot: _Slot,
    metric: str,
    limits: tuple[float, float],
    number: int,
    horizontal: bool,
) -> None:
    start, stop = limits
    bar = axes.barh if horizontal else axes.bar
    if point.mean is None:
        bar(
            slot.center, stop - start, slot.width, start, fill=False, hatch="////",
            edgecolor=MISSING, linewidth=0, label="_missing",
        )  # fmt: skip
        _write(axes, slot.center, start + 0.5 * (stop - start), NO_SCORE, horizontal)
        return
    bar(slot.center, point.mean - start, slot.width, start, label="_bar", **bar_style(number))
    if point.low is not None and point.high is not None:
        reach = [[point.mean - point.low], [point.high - point.mean]]
        error = {"xerr": reach} if horizontal else {"yerr": reach}
        place = (point.mean, slot.center) if horizontal else (slot.center, point.mean)
        axes.errorbar(*place, **error, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    _write_number(axes, slot.center, show_number(point.mean, metric), horizontal)


def _write(axes: Any, center: float, along: float, text: str, horizontal: bool) -> None:
    place = (along, center) if horizontal else (center, along)
    axes.text(
        *place, text, ha="center", va="center", fontsize=7.5, color=MUTED, style="italic",
        rotation=0 if horizontal else 90,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
    )  # fmt: skip


def _write_number(axes: Any, center: float, text: str, horizontal: bool) -> None:
    """Writes the mean outside the axes, where no whisker crosses it."""
    if horizontal:
        axes.text(1.015, center, text, transform=axes.get_yaxis_transform(), va="center",
                  fontsize=7.5, color=INK)  # fmt: skip
    else:
        axes.text(center, 1.015, text, transform=axes.get_xaxis_transform(), ha="center",
                  va="bottom", fontsize=7.5, color=INK)  # fmt: skip


def _set_axes(axes: Any, panel: Panel, limits: tuple[float, float], *, horizontal: bool) -> None:
    names = [plain(show_value(x)) for x in panel.xs]
    places = range(len(names))
    if horizontal:
        axes.set_yticks(places, names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(*limits)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        set_unit(axes.xaxis, panel.metric)
    else:
        axes.set_xticks(places, names)
        axes.set_xlim(-0.6, len(names) - 0.4)
        axes.set_ylim(*limits)
        axes.grid(visible=False, axis="x")
        axes.tick_params(axis="x", length=0)
        set_unit(axes.yaxis, panel.metric)


def draw_heatmap(axes: Any, panel: Panel, *, bar_label: str) -> Any:
    """Draws a cell for each x and series, with the mean and half the interval in it."""
    xs = panel.xs
    values = np.full((len(panel.series), len(xs)), np.nan)
    cells: dict[tuple[int, int], Point] = {}
    for row, series in enumerate(panel.series):
        for point in series.points:
            cells[row, xs.index(point.x)] = point
            values[row, xs.index(point.x)] = np.nan if point.mean is None else point.mean
    picture = axes.imshow(values, cmap=COLOR_MAP, aspect="auto", origin="lower")
    _hatch_missing(axes, values)
    for (row, column), point in cells.items():
        if point.mean is not None:
            _write_cell(axes, picture, point, (column, row), panel.metric)
    axes.set_xticks(range(len(xs)), [plain(show_value(x)) for x in xs])
    axes.set_yticks(range(len(panel.series)), [plain(series.name) for series in panel.series])
    _frame(axes)
    bar = axes.figure.colorbar(picture, ax=axes, label=bar_label, pad=0.02)
    bar.outline.set_visible(False)
    set_unit(bar.ax.yaxis, panel.metric)
    return picture


def draw_matrix(
    axes: Any, matrix: Sequence[Sequence[float]] | None, *, limits: tuple[float, float]
) -> Any:
    """Draws a matrix in a colour range shared with others; None draws hatched axes."""
    if matrix is None:
        axes.add_patch(_make_hatch((0, 0), 1, 1, transform=axes.transAxes))
        axes.text(0.5, 0.5, NO_SCORE, transform=axes.transAxes, ha="center", va="center",
                  color=MUTED, style="italic",
                  bbox={"facecolor": "white", "edgecolor": "none"})  # fmt: skip
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_box_aspect(1)
        picture = None
    else:
        values = np.asarray(matrix, dtype=float)
        picture = axes.imshow(
            np.ma.masked_invalid(values), cmap=COLOR_MAP, vmin=limits[0], vmax=limits[1],
            interpolation="nearest",
        )  # fmt: skip
    _frame(axes)
    return picture


def _write_cell(axes: Any, picture: Any, point: Point, place: tuple[int, int], metric: str) -> None:
    red, green, blue, _ = picture.cmap(picture.norm(point.mean))
    is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    text = show_number(point.mean, metric)
    if point.high is not None and point.mean is not None:
        text += f"\n±{show_number(point.high - point.mean, metric)}"
    axes.text(*place, text, ha="center", va="center", fontsize=7.5, linespacing=1.05,
              color="white" if is_dark else INK)  # fmt: skip


def _hatch_missing(axes: Any, values: np.ndarray) -> None:
    for row, column in np.argwhere(np.isnan(values)):
        axes.add_patch(_make_hatch((column - 0.5, row - 0.5), 1, 1))
        axes.text(column, row, "no\nscore", ha="center", va="center", fontsize=7, color=MUTED,
                  style="italic", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                  )  # fmt: skip


def _make_hatch(corner: tuple[float, float], width: float, height: float, **options: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        corner, width, height, fill=False, hatch="////", edgecolor=MISSING, linewidth=0, **options
    )


def _frame(axes: Any) -> None:
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


_MANY_POINTS = 14
_NARROW_INCHES = 5.0


def draw_lines(axes: Any, panel: Panel, *, log_x: bool = False) -> list[Any]:
    """Draws a panel and returns its legend handles, one a series, with or without scores."""
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
    # Costs are compared by ratio: an axis that starts at the smallest exaggerates differences.
    is_cost = panel.metric.startswith("cost.")
    shown = [point for series in panel.lines for point in series.points]
    axes.set_ylim(*find_limits(shown, metric=panel.metric, from_zero=is_cost))
    set_unit(axes.yaxis, panel.metric)
    draw_untrained(axes, panel, horizontal=False)
    style = {"color": MUTED, "linewidth": 1.1}
    for number, series in enumerate(panel.untrained_curves):
        dashes = {"linestyle": (0, (4 + 3 * number, 2))}
        handles.append(_draw_line(axes, series, None, {**style, **dashes}))
    return handles


def say_untrained(panel: Panel) -> list[str]:
    """Returns a line for each score that needs no training, for axes without room for them."""
    unit = unit_of(panel.metric)
    found = panel.untrained.items()
    return [f"{NO_TRAINING}: {plain(name)} {unit.show(value)}{unit.name}" for name, value in found]


def draw_untrained(axes: Any, panel: Panel, *, horizontal: bool) -> None:
    """Draws a line at each score that needs no training, or its number at the axis's end.

    The axis is not widened for it: the differences between the arms would vanish.
    """
    low, high = axes.get_xlim() if horizontal else axes.get_ylim()
    unit = unit_of(panel.metric)
    for number, (name, value) in enumerate(panel.untrained.items()):
        text = f"{plain(name)} {unit.show(value)}"
        is_inside = low < value < high
        if is_inside:
            draw = axes.axvline if horizontal else axes.axhline
            draw(value, color=MUTED, linewidth=1.1, linestyle=(0, (4, 2)), zorder=3)
        else:
            text = f"{NO_TRAINING}: {text}, {'below' if value <= low else 'above'} the axis"
        along = value if is_inside else (low if value <= low else high)
        side = {"horizontal": horizontal, "is_left": along < (low + high) / 2}
        _write_untrained(axes, text, along, number, is_titled=bool(panel.title), **side)


def _write_untrained(
    axes: Any,
    text: str,
    along: float,
    number: int,
    *,
    is_titled: bool,
    horizontal: bool,
    is_left: bool,
) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    font = {"fontsize": 6.5, "color": MUTED, "style": "italic", "bbox": box, "zorder": 4}
    if horizontal:
        # Above the bars, which fill the axes; a title there moves it to the foot.
        foot = 0 if is_titled else 1
        axes.annotate(text, (along, foot), xycoords=axes.get_xaxis_transform(),
                      xytext=(0, 3 + 9 * number), textcoords="offset points", va="bottom",
                      ha="left" if is_left else "right", **font)  # fmt: skip
    else:
        axes.annotate(text, (1, along), xycoords=axes.get_yaxis_transform(),
                      xytext=(-3, 3 if is_left else -3), textcoords="offset points", ha="right",
                      va="bottom" if is_left else "top", **font)  # fmt: skip


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
    width = axes.get_figure(root=True).get_figwidth()
    is_narrow = spec is not None and width / spec.get_gridspec().ncols < _NARROW_INCHES
    shown = _keep_apart(xs, log_x=log_x, gap=0.09 if is_narrow else 0.045)
    if log_x or (1 < len(xs) <= 12 and len(shown) == len(xs)):
        axes.set_xticks(shown, [show_value(x) for x in shown])
        axes.set_xticks([], minor=True)


def _keep_apart(xs: Sequence[float], *, log_x: bool, gap: float) -> list[float]:
    """Returns the positions whose labels do not overlap, as shares of the axis, with both ends."""
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
