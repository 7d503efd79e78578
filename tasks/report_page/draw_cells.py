"""Heat maps: a metric over two keys, and whole matrices side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.report_page.axes_of_metrics import set_unit
from tasks.report_page.labels import show_number, show_value
from tasks.report_page.panels import Panel, Point
from tasks.report_page.style import COLOR_MAP, INK, MISSING, MUTED, NO_SCORE, plain


def draw_heatmap(axes: Any, panel: Panel, *, bar_label: str) -> Any:
    """Draws a cell for each x and series, with mean and half the interval written into it."""
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
    """Draws one matrix in colours that others share; None leaves hatched axes."""
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
