"""Puts a figure's panels beside each other, with one legend for all."""

from collections.abc import Sequence
from typing import Any

from dml_core.studies.figures import Figure
from tasks.report_page.draw_bars import draw_bars, is_horizontal, say_start
from tasks.report_page.draw_cells import draw_heatmap
from tasks.report_page.draw_lines import draw_lines
from tasks.report_page.labels import label_axis, label_metric, label_together, with_unit
from tasks.report_page.panels import Panel
from tasks.report_page.style import plain

_LYING_COLUMNS = 4


def measure_ours(panels: Sequence[Panel], figure: Figure) -> float:
    """Returns the height in inches that the panels take, their legend included."""
    rows = -(-len(panels) // _count_columns(panels, figure))
    legend = 0.19 * -(-len(panels[0].series) // _legend_columns(panels[0])) + 0.1
    if figure.kind == "bar" and is_horizontal(panels[0]):
        # A bar of its own for each point, and the names of the axes.
        bars = max(len(panels[0].xs), 0.6 * len(panels[0].points))
        return rows * (0.75 + 0.235 * bars) + legend
    if figure.kind == "heatmap":
        return rows * max(2.6, 0.55 * len(panels[0].series) + 0.9)
    return rows * (3.3 if len(panels) == 1 else 2.9) + legend


def draw_ours(canvas: Any, panels: Sequence[Panel], figure: Figure) -> None:
    """Draws all panels of a figure of lines, bars or heat maps."""
    columns = _count_columns(panels, figure)
    rows = -(-len(panels) // columns)
    horizontal = figure.kind == "bar" and is_horizontal(panels[0])
    grid = list(canvas.subplots(rows, columns, squeeze=False, sharey=horizontal and "row").flat)
    handles: list[Any] = []
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        is_first = number % columns == 0
        handles = _draw_panel(axes, panel, figure, horizontal=horizontal, is_first=is_first)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if len(handles) > 1:
        canvas.legend(
            handles=handles, loc="outside lower left", ncols=_legend_columns(panels[0]),
            title=plain(figure.group) or None, alignment="left", handlelength=3,
            title_fontsize=8,
        )  # fmt: skip


def _draw_panel(
    axes: Any, panel: Panel, figure: Figure, *, horizontal: bool, is_first: bool
) -> list[Any]:
    y_label = label_metric(panel.metric) if panel.title else label_together(figure.y)
    if figure.y_label and not panel.title:
        y_label = with_unit(figure.y_label, panel.metric)
    x_label = plain(figure.x_label or label_axis(figure.x, figure.y))
    if figure.kind == "heatmap":
        draw_heatmap(axes, panel, bar_label=plain(y_label))
        axes.set_ylabel(plain(figure.group))
        axes.set_xlabel(x_label)
        handles: list[Any] = []
    elif figure.kind == "bar":
        handles = draw_bars(axes, panel, horizontal=horizontal)
        text = plain(y_label) + say_start(axes, panel.metric, horizontal=horizontal)
        _label_bars(axes, text, x_label, horizontal)
        if horizontal and not is_first:
            axes.tick_params(labelleft=False)
    else:
        handles = draw_lines(axes, panel, log_x=figure.log_x)
        axes.set_xlabel(x_label)
        axes.set_ylabel(plain(y_label))
    if horizontal:
        # The label at the foot may be far away.
        axes.set_title(plain(panel.title))
    return handles


def _label_bars(axes: Any, metric: str, names: str, horizontal: bool) -> None:
    axes.set_xlabel(metric if horizontal else names)
    axes.set_ylabel(names if horizontal else metric)


def _count_columns(panels: Sequence[Panel], figure: Figure) -> int:
    if figure.kind == "bar" and is_horizontal(panels[0]):
        return min(_LYING_COLUMNS, len(panels))
    return 1 if figure.kind == "heatmap" else min(2, len(panels))


def _legend_columns(panel: Panel) -> int:
    longest = max((len(series.name) for series in panel.series), default=1)
    return max(1, min(4, 84 // (longest + 8)))
