"""What papers printed, in axes of their own on another ground."""

import textwrap
from collections.abc import Sequence
from typing import Any

from dml_core.studies.definition import Figure, Published
from tasks.report_page.draw import draw_bars, draw_heatmap, draw_lines, is_horizontal, say_start
from tasks.report_page.labels import PUBLISHED, label_axis
from tasks.report_page.panels import Panel, Point, Series, is_number
from tasks.report_page.style import MUTED, PUBLISHED_PAPER, plain

COLUMNS = 2


def make_published_panel(published: Published) -> Panel:
    """Returns the numbers of a paper as a panel; x are numbers where all of them are."""
    names = [x for values in published.series.values() for x in values]
    is_numeric = all(_is_numeric(name) for name in names)
    series = tuple(
        Series(
            name, tuple(Point(float(x) if is_numeric else x, value) for x, value in values.items())
        )
        for name, values in published.series.items()
    )
    title = f"{published.dataset}, {published.backbone}"
    return Panel(PUBLISHED, series, title)


def draw_published(canvas: Any, all_published: Sequence[Published], figure: Figure) -> None:
    """Draws every paper's numbers, each with dataset, network and source above it."""
    canvas.set_facecolor(PUBLISHED_PAPER)
    canvas.suptitle(
        "Published, on other data and networks: not to be compared with the numbers above",
        x=0.012, ha="left", fontsize=8.5, color=MUTED, style="italic",
    )  # fmt: skip
    columns = min(COLUMNS, len(all_published))
    rows = -(-len(all_published) // columns)
    grid = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for axes, published in zip(grid, all_published, strict=False):
        _draw_one(axes, published, figure)
    for axes in grid[len(all_published) :]:
        axes.set_visible(False)


def measure_published(all_published: Sequence[Published], figure: Figure) -> float:
    """Returns the height in inches that the papers' numbers take."""
    if not all_published:
        return 0.0
    rows = -(-len(all_published) // min(COLUMNS, len(all_published)))
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
    """Puts the legend below the label of the axis, where it covers nothing."""
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


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
