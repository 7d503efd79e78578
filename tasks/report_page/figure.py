"""Draws a study's figures: PNG, SVG and the numbers as CSV beside them."""

import csv
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dml_core.analysis.observations import Observations
from dml_core.data.spreadsheet_cells import protect_cell
from dml_core.studies.definition import Figure, Published
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.draw import draw_bars, draw_heatmap, draw_lines, is_horizontal, say_start
from tasks.report_page.labels import PUBLISHED, label_axis, label_metric, label_together, with_unit
from tasks.report_page.matrices import draw_matrices, make_matrix_rows, to_panel
from tasks.report_page.panels import Panel, make_panels
from tasks.report_page.published import draw_published, make_published_panel, measure_published
from tasks.report_page.style import plain, report_style

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


WIDTH_INCHES = 7.2
COLUMNS = ("panel", "series", "x", "mean", "low", "high", "num_seeds")


def draw_figure(
    study: ResolvedStudy,
    observations: Observations,
    figure: Figure,
    *,
    target: Path,
    published: Sequence[Published] = (),
) -> Any:
    """Writes a figure as .png, .svg and .csv beside each other, and returns it as it was drawn.

    Args:
        study: the study, for its arms.
        observations: its numbers.
        figure: what to draw.
        target: path without an ending.
        published: what papers printed, drawn below in axes of their own.
    """
    is_matrices = figure.kind == "matrices"
    rows = make_matrix_rows(study, observations, figure.y[0]) if is_matrices else []
    panels = [] if is_matrices else make_panels(study, observations, figure)
    title = textwrap.wrap(figure.title or study.definition.question, 84)
    heights = [
        0.2 * len(title) + (0.3 + 2.6 * len(rows) if rows else measure_ours(panels, figure)),
        measure_published(published, figure),
    ]
    with report_style() as plt:
        canvas = plt.figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
        parts = _split(canvas, heights)
        parts[0].suptitle("\n".join(map(plain, title)), x=0.012, ha="left", fontsize=10)
        if rows:
            draw_matrices(parts[0], rows, figure)
        else:
            draw_ours(parts[0], panels, figure)
        if published:
            draw_published(parts[1], published, figure)
        save_canvas(canvas, target)
    drawn = [to_panel(rows, figure.y[0])] if rows else panels
    write_numbers([*drawn, *map(make_published_panel, published)], target.with_suffix(".csv"))
    return canvas


def save_canvas(canvas: Any, target: Path) -> None:
    """Writes a drawing as PNG and SVG; equal drawings give equal files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Finding the layout takes longer than drawing: once is enough for both files.
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")
    canvas.savefig(target.with_suffix(".png"), metadata={"Software": None})
    canvas.savefig(target.with_suffix(".svg"), metadata={"Date": None, "Creator": None})


def write_numbers(panels: Sequence[Panel], target: Path) -> None:
    """Writes one line for each drawn point, those without a score included."""
    with open(target, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for panel in panels:
            name = f"published: {panel.title}" if panel.metric == PUBLISHED else panel.metric
            for series in panel.series:
                rows = (
                    [name, series.name, p.x, p.mean, p.low, p.high, p.num_seeds]
                    for p in series.points
                )
                writer.writerows([_protect(cell) for cell in row] for row in rows)


def _protect(cell: object) -> object:
    # Names of series and places are values of the study's keys, which may be any text.
    return protect_cell(cell) if isinstance(cell, str) else cell


def _split(canvas: Any, heights: Sequence[float]) -> list[Any]:
    if not heights[1]:
        return [canvas]
    return list(canvas.subfigures(2, 1, height_ratios=heights))
