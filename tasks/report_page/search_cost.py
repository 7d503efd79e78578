"""The figure of what a search costs: R@1 over bytes of an image, and over queries a second."""

from pathlib import Path
from statistics import median
from typing import Any

from dml_core.analysis.observations import Observations
from dml_core.studies.metrics import SEARCH_INDEXES
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.draw import find_limits, set_unit
from tasks.report_page.figure import PAGE, PHONE, Layout, save_canvas, to_svg, write_numbers
from tasks.report_page.page import Picture, embed_figure
from tasks.report_page.panels import Panel, Point, Series, make_point
from tasks.report_page.style import COLORS, INK, MARKERS, plain, report_style

RECALL = "test.recall_at_1"
_AXES = {"bytes": "bytes of an image", "queries_per_second": "queries a second"}
_CAPTION = (
    "What a search finds, stores and takes, by index (mark) and arm (colour): up is better, left "
    "with fewer bytes, right with more queries. One query at a time, one thread, in the test "
    "images; bars are 95 % intervals over the seeds. hnsw and ivf gain in larger galleries."
)


def draw_search_cost(
    study: ResolvedStudy, observations: Observations, folder: Path
) -> list[Picture]:
    """Writes search_cost as PNG, SVG and CSV; nothing without the measure."""
    panels = [_make_panel(study, observations, number) for number in _AXES]
    if not all(panel.series for panel in panels):
        return []
    target = folder / "search_cost"
    with report_style() as plt:
        save_canvas(_draw(plt, study, panels, PAGE), target)
        narrow = to_svg(_draw(plt, study, panels, PHONE))
    write_numbers(panels, target.with_suffix(".csv"))
    return [embed_figure(target, name=study.name, caption=_CAPTION, narrow=narrow)]


def _make_panel(study: ResolvedStudy, observations: Observations, number: str) -> Panel:
    """Returns a series for each arm; its points have the order of SEARCH_INDEXES."""
    series = []
    for arm in study.arms:
        for kind in SEARCH_INDEXES:
            costs = observations.scalars(f"search.{kind}_{number}").get(arm.name)
            recalls = observations.scalars(f"search.{kind}_recall_at_1").get(arm.name)
            if costs and recalls:
                # The median of the rounds: a slow moment of the machine does not count.
                point = make_point(median(costs.values()), recalls, "test.recall_at_1")
                series.append(Series(f"{arm.name}, {kind}", (point,)))
    return Panel(f"search.recall_at_1 over {number}", tuple(series), _AXES[number])


def _draw(plt: Any, study: ResolvedStudy, panels: list[Panel], layout: Layout) -> Any:
    columns = min(layout.columns, len(panels))
    rows = -(-len(panels) // columns)
    arms = [arm.name for arm in study.arms]
    lines = -(-max(len(SEARCH_INDEXES), len(arms)) // columns)
    height = 3.1 * rows + 0.2 * lines + 0.2
    canvas, grid = plt.subplots(
        rows, columns, figsize=(layout.width_inches, height), squeeze=False, layout="constrained"
    )
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw_panel(axes, panel, arms)
    handles = _make_handles(arms, length=lines * columns)
    canvas.legend(handles=handles, loc="outside lower left", ncols=2 * columns)
    return canvas


def _draw_panel(axes: Any, panel: Panel, arms: list[str]) -> None:
    for series in panel.series:
        arm, _, kind = series.name.rpartition(", ")
        _draw_point(axes, series.points[0], arms.index(arm), SEARCH_INDEXES.index(kind))
    axes.set_xscale("log")
    axes.set_ylim(*find_limits(panel.points, metric=RECALL, from_zero=False))
    set_unit(axes.yaxis, RECALL)
    axes.set_xlabel(panel.title)
    axes.set_ylabel("R@1, test classes (%)")


def _draw_point(axes: Any, point: Point, arm: int, kind: int) -> None:
    color, mean = COLORS[arm % len(COLORS)], point.mean or 0.0
    reach = None
    if point.low is not None and point.high is not None:
        reach = [[mean - point.low], [point.high - mean]]
    axes.errorbar(
        [point.x], [mean], yerr=reach, color=color, marker=MARKERS[kind], markersize=6,
        markeredgecolor=INK, markeredgewidth=0.4, elinewidth=0.9, linestyle="none",
    )  # fmt: skip


def _make_handles(arms: list[str], *, length: int) -> list[Any]:
    """Returns the marks of the indexes, then the colours of the arms, each filled to a length."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=INK, marker=MARKERS[place], linestyle="none", label=kind)
        for place, kind in enumerate(SEARCH_INDEXES)
    ]
    colors = [
        Line2D([], [], color=COLORS[place % len(COLORS)], linewidth=4, label=plain(arm))
        for place, arm in enumerate(arms)
    ]
    empty = Line2D([], [], linestyle="none", label=" ")
    return [
        handle for group in (marks, colors) for handle in (*group, *[empty] * (length - len(group)))
    ]
