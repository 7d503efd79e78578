"""Learning curves of every arm: validation score and training loss over the epochs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dml_core.analysis.observations import Observations
from dml_core.studies.definition import Figure
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.draw import find_limits, set_unit
from tasks.report_page.figure import (
    WIDTH_INCHES,
    draw_ours,
    measure_ours,
    save_canvas,
    write_numbers,
)
from tasks.report_page.labels import label_metric
from tasks.report_page.panels import Panel, Point, Series, make_panels
from tasks.report_page.style import COLORS, MISSING, MUTED, NO_SCORE, plain, report_style

FEW_ARMS = 6
_COLUMNS = 5


def draw_learning_curves(
    study: ResolvedStudy, observations: Observations, *, folder: Path
) -> list[Path]:
    """Writes the curves as PNG, SVG and CSV; returns their paths without endings.

    Few arms share axes; many get one small picture each, with the others in grey behind.
    """
    selection = study.arm_config(study.baseline).selection_metric
    metrics = (f"validation.{selection}", "train.loss")
    if len(study.arms) <= FEW_ARMS:
        figure = Figure(kind="lines", x="epoch", y=metrics, title="Learning curves")
        panels = make_panels(study, observations, figure)
        with report_style() as plt:
            size = (WIDTH_INCHES, measure_ours(panels, figure))
            canvas = plt.figure(figsize=size, layout="constrained")
            draw_ours(canvas, panels, figure)
            save_canvas(canvas, folder / "curves")
        write_numbers(panels, folder / "curves.csv")
        return [folder / "curves"]
    targets = [folder / "curves-validation", folder / "curves-loss"]
    for metric, target in zip(metrics, targets, strict=True):
        figure = Figure(kind="lines", x="epoch", y=metric)
        (panel,) = make_panels(study, observations, figure)
        _draw_many(panel, target, is_shared=metric != "train.loss")
        write_numbers([panel], target.with_suffix(".csv"))
    return targets


def _draw_many(panel: Panel, target: Path, *, is_shared: bool) -> None:
    """Draws small multiples; losses of different arms have scales of their own."""
    rows = -(-len(panel.series) // _COLUMNS)
    height = 1.15 * rows + 0.75
    # Places are given in inches and not searched for, which would take long for many axes.
    margins = {
        "left": 0.62 / WIDTH_INCHES,
        "right": 1 - 0.1 / WIDTH_INCHES,
        "bottom": 0.45 / height,
        "top": 1 - 0.25 / height,
    }
    with report_style() as plt:
        canvas, grid = plt.subplots(
            rows,
            _COLUMNS,
            figsize=(WIDTH_INCHES, height),
            squeeze=False,
            gridspec_kw={**margins, "wspace": 0.3, "hspace": 0.42},
        )
        for axes in grid.flat:
            axes.set_visible(False)
        for number, (axes, series) in enumerate(zip(grid.flat, panel.series, strict=False)):
            axes.set_visible(True)
            others = [s for s in panel.series if s is not series] if is_shared else []
            _draw_small(axes, series, others)
            _set_small_axes(axes, panel.points if is_shared else series.points, panel)
            is_lowest = number + _COLUMNS >= len(panel.series)
            axes.tick_params(
                labelbottom=is_lowest, labelleft=not is_shared or not number % _COLUMNS
            )
        canvas.text(0.5, 0.08 / height, "epoch", ha="center", fontsize=9)
        label = plain(label_metric(panel.metric))
        canvas.text(0.08 / WIDTH_INCHES, 0.5, label, va="center", rotation=90, fontsize=9)
        save_canvas(canvas, target)


def _set_small_axes(axes: Any, points: Sequence[Point], panel: Panel) -> None:
    axes.set_ylim(*find_limits(points, metric=panel.metric, from_zero=False))
    set_unit(axes.yaxis, panel.metric)
    axes.yaxis.get_major_locator().set_params(nbins=3)
    epochs = panel.xs
    if epochs:
        reach = 0.05 * (epochs[-1] - epochs[0]) or 0.5
        axes.set_xlim(epochs[0] - reach, epochs[-1] + reach)
        axes.set_xticks(sorted({epochs[0], epochs[-1]}))


def _draw_small(axes: Any, series: Series, others: list[Series]) -> None:
    for other in others:
        axes.plot(*_means(other), color=MISSING, linewidth=0.5, alpha=0.7)
    xs, means = _means(series)
    points = [point for point in series.points if point.mean is not None]
    lows = [p.mean if p.low is None else p.low for p in points]
    highs = [p.mean if p.high is None else p.high for p in points]
    axes.fill_between(xs, lows, highs, color=COLORS[0], alpha=0.2, linewidth=0)
    axes.plot(xs, means, color=COLORS[0], linewidth=1.4)
    name = series.name if len(series.name) <= 24 else f"{series.name[:11]}…{series.name[-12:]}"
    axes.set_title(plain(name), fontsize=6.6, pad=3)
    axes.tick_params(labelsize=6.5)
    if not points:
        axes.text(0.5, 0.5, NO_SCORE, transform=axes.transAxes, ha="center", va="center",
                  fontsize=7.5, color=MUTED, style="italic")  # fmt: skip
        axes.set_facecolor("#f4f4f4")


def _means(series: Series) -> tuple[list[float], list[float]]:
    points = [point for point in series.points if point.mean is not None]
    return [point.x for point in points], [float(point.mean or 0) for point in points]
