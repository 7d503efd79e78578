"""Bars with whiskers: a metric by name, coloured by group."""

from dataclasses import dataclass
from typing import Any

from tasks.report_page.axes_of_metrics import find_limits, set_unit
from tasks.report_page.labels import show_number, show_value, unit_of
from tasks.report_page.panels import Panel, Point
from tasks.report_page.style import INK, MISSING, MUTED, NO_SCORE, bar_style, plain

_SHORT_NAME = 11
_FEW_BARS = 9


def is_horizontal(panel: Panel) -> bool:
    """Whether names are many or long, and bars lie so that the names stay readable."""
    longest = max((len(show_value(x)) for x in panel.xs), default=0)
    return len(panel.xs) > _FEW_BARS or longest > _SHORT_NAME


def say_start(axes: Any, metric: str, *, horizontal: bool) -> str:
    """Returns what to add to the label of bars that do not begin at zero."""
    start = (axes.get_xlim() if horizontal else axes.get_ylim())[0]
    if start == 0:
        return ""
    unit = unit_of(metric)
    shown = f"{unit.factor * start:.3g}{unit.name}"
    return f"\n(axis starts at {shown})"


@dataclass(frozen=True)
class _Slot:
    """A bar's place across the axis."""

    center: float
    width: float


def draw_bars(axes: Any, panel: Panel, *, horizontal: bool) -> list[Any]:
    """Draws a panel and returns the handles of its legend, one a series.

    A bar without a score keeps its place, hatched and marked.
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
    """Writes the mean outside of the axes, where no whisker crosses it."""
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
