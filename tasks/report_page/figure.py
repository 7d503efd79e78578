"""A study's figure as PNG, SVG and CSV: its own scores, and below them the published ones."""

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
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
    say_untrained,
)
from tasks.report_page.panels import (
    NO_TRAINING,
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
    plain_lines,
    report_style,
    with_unit,
)


@dataclass(frozen=True)
class Layout:
    """How wide a figure is, and how much fits side by side."""

    width_inches: float
    letters: int
    """In a line of text."""
    columns: int
    """Panels in a row."""
    lying_columns: int
    """Panels of horizontal bars in a row."""
    num_upright: int
    """Vertical bars of one panel; more are drawn horizontally."""


PAGE = Layout(7.2, 84, columns=2, lying_columns=4, num_upright=9)
PHONE = Layout(3.7, 44, columns=1, lying_columns=1, num_upright=4)
"""As wide as the screen of a phone, so that type keeps its size there."""


def measure_ours(panels: Sequence[Panel], figure: Figure, layout: Layout = PAGE) -> float:
    """Returns the height of the panels and their legend in inches."""
    rows = -(-len(panels) // _count_columns(panels, figure, layout))
    legend = 0.19 * -(-len(panels[0].lines) // _legend_columns(panels[0], layout)) + 0.1
    if figure.kind == "bar" and _lies(panels[0], layout):
        # A bar for each point, and the labels of the axes.
        bars = max(len(panels[0].xs), 0.6 * len(panels[0].points))
        return rows * (0.75 + 0.235 * bars) + legend
    if figure.kind == "heatmap":
        return rows * max(2.6, 0.55 * len(panels[0].series) + 0.9)
    return rows * (3.3 if len(panels) == 1 else 2.9) + legend


def draw_ours(canvas: Any, panels: Sequence[Panel], figure: Figure, layout: Layout = PAGE) -> None:
    """Draws all panels of a figure of lines, bars or heat maps."""
    columns = _count_columns(panels, figure, layout)
    rows = -(-len(panels) // columns)
    horizontal = figure.kind == "bar" and _lies(panels[0], layout)
    grid = list(canvas.subplots(rows, columns, squeeze=False, sharey=horizontal and "row").flat)
    handles: list[Any] = []
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        is_first = number % columns == 0
        handles = _draw_panel(axes, panel, figure, horizontal=horizontal, is_first=is_first)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if len(handles) > 1:
        canvas.legend(
            handles=handles, loc="outside lower left", ncols=_legend_columns(panels[0], layout),
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
        axes.set_xlabel("\n".join([x_label, *say_untrained(panel)]))
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


def _lies(panel: Panel, layout: Layout) -> bool:
    return is_horizontal(panel, num_upright=layout.num_upright)


def _count_columns(panels: Sequence[Panel], figure: Figure, layout: Layout) -> int:
    if figure.kind == "bar" and _lies(panels[0], layout):
        return min(layout.lying_columns, len(panels))
    return 1 if figure.kind == "heatmap" else min(layout.columns, len(panels))


def _legend_columns(panel: Panel, layout: Layout) -> int:
    longest = max((len(series.name) for series in panel.lines), default=1)
    return max(1, min(4, layout.letters // (longest + 8)))


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
    content = _read_content(study, observations, figure)
    with report_style() as plt:
        canvas = _compose(plt, content, figure, published, PAGE)
        save_canvas(canvas, target)
    rows, panels, _ = content
    drawn = [to_panel(rows, figure.y[0])] if rows else panels
    write_numbers([*drawn, *map(make_published_panel, published)], target.with_suffix(".csv"))
    return canvas


def draw_for_phone(
    study: ResolvedStudy,
    observations: Observations,
    figure: Figure,
    *,
    published: Sequence[Published] = (),
) -> bytes:
    """Returns the same figure as an SVG for narrow screens: panels below each other."""
    with report_style() as plt:
        content = _read_content(study, observations, figure)
        return to_svg(_compose(plt, content, figure, published, PHONE))


_Content = tuple[list[list[MatrixCell]], list[Panel], str]
"""The matrices or the panels of a figure, and its title."""


def _read_content(study: ResolvedStudy, observations: Observations, figure: Figure) -> _Content:
    is_matrices = figure.kind == "matrices"
    rows = make_matrix_rows(study, observations, figure.y[0]) if is_matrices else []
    panels = [] if is_matrices else make_panels(study, observations, figure)
    return rows, panels, figure.title or study.definition.question


def _compose(
    plt: Any, content: _Content, figure: Figure, published: Sequence[Published], layout: Layout
) -> Any:
    rows, panels, question = content
    title = textwrap.wrap(question, layout.letters)
    matrix_height = 2.6 * min(1.0, layout.width_inches / 5)
    heights = [
        0.2 * len(title)
        + (0.3 + matrix_height * len(rows) if rows else measure_ours(panels, figure, layout)),
        measure_published(published, figure, layout),
    ]
    canvas = plt.figure(figsize=(layout.width_inches, sum(heights)), layout="constrained")
    parts = _split(canvas, heights)
    parts[0].suptitle("\n".join(map(plain, title)), x=0.012, ha="left", fontsize=10)
    if rows:
        draw_matrices(parts[0], rows, figure, layout)
    else:
        draw_ours(parts[0], panels, figure, layout)
    if published:
        draw_published(parts[1], published, figure, layout)
    return canvas


def to_svg(canvas: Any) -> bytes:
    """Returns a drawing as an SVG; equal drawings give equal bytes."""
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


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
            for series in panel.lines:
                rows = (
                    [name, series.name, p.x, p.mean, p.low, p.high, p.num_seeds]
                    for p in series.points
                )
                writer.writerows([_protect(cell) for cell in row] for row in rows)
            for name_untrained, score in panel.untrained.items():
                writer.writerow([name, NO_TRAINING, name_untrained, score, None, None, 0])


def _protect(cell: object) -> object:
    # Names of series and positions are values of the study's keys, which may be any text.
    return protect_cell(cell) if isinstance(cell, str) else cell


def _split(canvas: Any, heights: Sequence[float]) -> list[Any]:
    if not heights[1]:
        return [canvas]
    return list(canvas.subfigures(2, 1, height_ratios=heights))


_WARNING = "Published, on other data and networks: not to be compared with the numbers above"


def draw_published(
    canvas: Any, all_published: Sequence[Published], figure: Figure, layout: Layout = PAGE
) -> None:
    """Draws the scores of each paper, with dataset, network and source as the title."""
    canvas.set_facecolor(PUBLISHED_PAPER)
    canvas.suptitle(
        textwrap.fill(_WARNING, layout.letters),
        x=0.012, ha="left", fontsize=8.5, color=MUTED, style="italic",
    )  # fmt: skip
    columns = min(layout.columns, len(all_published))
    rows = -(-len(all_published) // columns)
    grid = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for axes, published in zip(grid, all_published, strict=False):
        _draw_one(axes, published, figure, layout)
    for axes in grid[len(all_published) :]:
        axes.set_visible(False)


def measure_published(
    all_published: Sequence[Published], figure: Figure, layout: Layout = PAGE
) -> float:
    """Returns the height of the published scores in inches."""
    if not all_published:
        return 0.0
    rows = -(-len(all_published) // min(layout.columns, len(all_published)))
    panels = [make_published_panel(published) for published in all_published]
    lying = [len(p.points) for p in panels if figure.kind == "bar" and _lies(p, layout)]
    legend = max(0.1 * len(panel.series) + 0.2 for panel in panels)
    head = 0.15 + 0.15 * len(textwrap.wrap(_WARNING, layout.letters))
    return rows * (max([2.7, *(1.3 + 0.2 * count for count in lying)]) + legend) + head


def _draw_one(axes: Any, published: Published, figure: Figure, layout: Layout) -> None:
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
        handles = _draw_bars(axes, panel, published, horizontal=_lies(panel, layout))
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


def _draw_bars(axes: Any, panel: Panel, published: Published, *, horizontal: bool) -> list[Any]:
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


def draw_matrices(
    canvas: Any, rows: list[list[MatrixCell]], figure: Figure, layout: Layout = PAGE
) -> None:
    """Draws the matrices with one colour scale, a row for each arm."""
    matrices = [np.array(cell.matrix) for row in rows for cell in row if cell.matrix is not None]
    finite = np.concatenate([m[np.isfinite(m)] for m in matrices]) if matrices else np.zeros(1)
    limits = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    grid = canvas.subplots(len(rows), 2, squeeze=False)
    pictures = []
    for row, axes_row in zip(rows, grid, strict=True):
        for cell, axes in zip(row, axes_row, strict=True):
            pictures.append(draw_matrix(axes, cell.matrix, limits=limits))
            axes.set_title(plain_lines(textwrap.fill(cell.name, layout.letters // 2)))
            if cell.points:
                axes.set_xlabel(plain(figure.x_label or "class"))
                axes.set_ylabel(plain(figure.x_label or "class"))
    drawn = [picture for picture in pictures if picture is not None]
    if drawn:
        label = plain(figure.y_label or label_metric(figure.y[0]))
        bar = canvas.colorbar(drawn[0], ax=grid, label=label, shrink=0.8)
        bar.outline.set_visible(False)
