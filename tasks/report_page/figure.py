"""Draws a study's figures: PNG, SVG and the numbers as CSV beside them."""

import csv
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dml_core.data.spreadsheet_cells import protect_cell
from dml_core.studies.figures import Figure, Published
from dml_core.studies.observations import Observations
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.compose import draw_ours, measure_ours
from tasks.report_page.labels import PUBLISHED
from tasks.report_page.matrices import draw_matrices, make_matrix_rows, to_panel
from tasks.report_page.panels import Panel, make_panels
from tasks.report_page.published import draw_published, make_published_panel, measure_published
from tasks.report_page.style import plain, report_style

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
