"""A study's figure as PNG, SVG and CSV: its own scores, and below them the published ones."""

import csv
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dml_core.analysis.observations import Observations
from dml_core.data.spreadsheet_cells import protect_cell
from dml_core.studies.definition import Figure, Published
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.draw import (
    draw_bars,
    draw_heatmap,
    draw_lines,
    draw_matrix,
    is_horizontal,
    say_start,
)
from tasks.report_page.panels import (
    MatrixCell,
    Panel,
    is_number,
    make_matrix_rows,
    make_panels,
    make_published_panel,
    to_panel,
)
from tasks.report_page.style import (
    MUTED,
    PUBLISHED,
    PUBLISHED_PAPER,
    label_axis,
    label_metric,
    label_together,
    plain,
    report_style,
    with_unit,
)

_LYING_COLUMNS = 4


def measure_ours(panels: Sequence[Panel], figure: Figure) -> float:
    """Returns the height of the panels and their legend in inches."""
    rows = -(-len(panels) // _count_columns(panels, figure))
    legend = 0.19 * -(-len(panels[0].series) // _legend_columns(panels[0])) + 0.1
    if figure.kind == "bar" and is_horizontal(panels[0]):
        # A bar for each point, and the labels of the axes.
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
        # The label at the bottom may be far away.
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
    """Writes a figure as .png, .svg and .csv side by side, and returns the drawing.

    Args:
        study: the study, for its arms.
        observations: its numbers.
        figure: what to draw.
        target: path without a suffix.
        published: published scores, drawn below in their own axes.
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
    # Computing the layout takes longer than drawing: both files share it.
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")
    canvas.savefig(target.with_suffix(".png"), metadata={"Software": None})
    canvas.savefig(target.with_suffix(".svg"), metadata={"Date": None, "Creator": None})


def write_numbers(panels: Sequence[Panel], target: Path) -> None:
    """Writes one line for each point, including those without a score."""
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
    # Names of series and positions are values of the study's keys, which may be any text.
    return protect_cell(cell) if isinstance(cell, str) else cell


def _split(canvas: Any, heights: Sequence[float]) -> list[Any]:
    if not heights[1]:
        return [canvas]
    return list(canvas.subfigures(2, 1, height_ratios=heights))


_PUBLISHED_COLUMNS = 2


def draw_published(canvas: Any, all_published: Sequence[Published], figure: Figure) -> None:
    """Draws the scores of each paper, with dataset, network and source as the title."""
    canvas.set_facecolor(PUBLISHED_PAPER)
    canvas.suptitle(
        "Published, on other data and networks: not to be compared with the numbers above",
        x=0.012, ha="left", fontsize=8.5, color=MUTED, style="italic",
    )  # fmt: skip
    columns = min(_PUBLISHED_COLUMNS, len(all_published))
    rows = -(-len(all_published) // columns)
    grid = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for axes, published in zip(grid, all_published, strict=False):
        _draw_one(axes, published, figure)
    for axes in grid[len(all_published) :]:
        axes.set_visible(False)


def measure_published(all_published: Sequence[Published], figure: Figure) -> float:
    """Returns the height of the published scores in inches."""
    if not all_published:
        return 0.0
    rows = -(-len(all_published) // min(_PUBLISHED_COLUMNS, len(all_published)))
    panels = [make_published_panel(published) for published in all_published]
    lying = [len(p.points) for p in panels if figure.kind == "bar" and is_horizontal(p)]
    legend = max(0.1 * len(panel.series) + 0.2 for panel in panels)
    return rows * (max([2.7, *(1.3 + 0.2 * count for count in lying)]) + legend) + 0.3


def _draw_one(axes: Any, published: Published, figure: Figure) -> None:
    panel = make_published_panel(published)
    axes.set_facecolor(PUBLISHED_PAPER)
    x_label = published.x_label or figure.x_label or label_axis(figure.x)
    is_numeric = all(is_number(x) for x in panel.xs)
    handles: list[Any] = []
    if figure.kind == "heatmap" and is_numeric:
        draw_heatmap(axes, panel, bar_label=plain(published.metric))
        axes.set_ylabel(plain(figure.group))
    elif figure.kind in ("line", "lines", "heatmap") and is_numeric:
        handles = draw_lines(axes, panel, log_x=figure.log_x)
        axes.set_ylabel(plain(published.metric))
    else:
        handles = _draw_bars(axes, panel, published)
    if not axes.get_xlabel():
        axes.set_xlabel(plain(x_label))
    if len(handles) > 1:
        _draw_legend(axes, handles)
    _set_title(axes, published)


def _draw_legend(axes: Any, handles: list[Any]) -> None:
    """Places the legend below the axis label, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    below = ScaledTranslation(0, -0.56, axes.figure.dpi_scale_trans)
    axes.legend(
        handles=handles,
        fontsize=7,
        ncols=2,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + below,
        borderaxespad=0,
        handlelength=2.4,
    )


def _draw_bars(axes: Any, panel: Panel, published: Published) -> list[Any]:
    horizontal = is_horizontal(panel)
    handles = draw_bars(axes, panel, horizontal=horizontal)
    label = plain(published.metric) + say_start(axes, panel.metric, horizontal=horizontal)
    if horizontal:
        axes.set_xlabel(label)
    else:
        axes.set_ylabel(label)
    return handles


def _set_title(axes: Any, published: Published) -> None:
    lines = [
        *textwrap.wrap(f"{published.dataset}, {published.backbone}", 44),
        *textwrap.wrap(published.source, 48),
        *textwrap.wrap(published.note, 48),
    ]
    # Numbers above vertical bars need room below the title.
    text = "\n".join(plain(line) for line in lines)
    axes.set_title(text, fontsize=7.5, color=MUTED, pad=14)


def draw_matrices(canvas: Any, rows: list[list[MatrixCell]], figure: Figure) -> None:
    """Draws the matrices with one colour scale, a row for each arm."""
    matrices = [np.array(cell.matrix) for row in rows for cell in row if cell.matrix is not None]
    finite = np.concatenate([m[np.isfinite(m)] for m in matrices]) if matrices else np.zeros(1)
    limits = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    grid = canvas.subplots(len(rows), 2, squeeze=False)
    pictures = []
    for row, axes_row in zip(rows, grid, strict=True):
        for cell, axes in zip(row, axes_row, strict=True):
            pictures.append(draw_matrix(axes, cell.matrix, limits=limits))
            axes.set_title(plain(cell.name))
            if cell.points:
                axes.set_xlabel(plain(figure.x_label or "class"))
                axes.set_ylabel(plain(figure.x_label or "class"))
    drawn = [picture for picture in pictures if picture is not None]
    if drawn:
        label = plain(figure.y_label or label_metric(figure.y[0]))
        bar = canvas.colorbar(drawn[0], ax=grid, label=label, shrink=0.8)
        bar.outline.set_visible(False)
