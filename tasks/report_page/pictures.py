"""The pictures of a report: figures, learning curves, the embedding map, and the history."""

import csv
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dml_core.analysis.estimates import estimate_mean
from dml_core.analysis.history import Result
from dml_core.analysis.observations import Observations
from dml_core.data.spreadsheet_cells import restore_cell
from dml_core.studies.definition import Figure
from dml_core.studies.metrics import Unit, unit_of
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.draw import find_limits, set_unit
from tasks.report_page.figure import (
    PAGE,
    PHONE,
    Layout,
    draw_figure,
    draw_for_phone,
    draw_ours,
    measure_ours,
    save_canvas,
    to_svg,
    write_numbers,
)
from tasks.report_page.page import Picture, embed_figure, embed_pixels
from tasks.report_page.panels import Panel, Point, Series, make_panels
from tasks.report_page.style import (
    COLORS,
    INK,
    MARKERS,
    MISSING,
    MUTED,
    NO_SCORE,
    label_metric,
    name_metric,
    plain,
    plain_lines,
    report_style,
)

FEW_ARMS = 6
_COLUMNS = {PAGE: 5, PHONE: 3}
_NAME_LETTERS = {PAGE: 24, PHONE: 18}
"""Of the title of a small plot."""


def draw_learning_curves(
    study: ResolvedStudy, observations: Observations, *, folder: Path
) -> dict[Path, bytes]:
    """Writes the curves as PNG, SVG and CSV; returns the drawings for phones by their paths.

    Few arms share axes; with many, each has a small plot with the others in grey behind. The paths
    have no suffixes.
    """
    selection = study.arm_config(study.baseline).selection_metric
    metrics = (f"validation.{selection}", "train.loss")
    if len(study.arms) <= FEW_ARMS:
        figure = Figure(kind="lines", x="epoch", y=metrics, title="Learning curves")
        panels = make_panels(study, observations, figure)
        target = folder / "curves"
        with report_style() as plt:
            save_canvas(_draw_few(plt, panels, figure, PAGE), target)
            phone = to_svg(_draw_few(plt, panels, figure, PHONE))
        write_numbers(panels, folder / "curves.csv")
        return {target: phone}
    targets = [folder / "curves-validation", folder / "curves-loss"]
    drawn = {}
    for metric, target in zip(metrics, targets, strict=True):
        figure = Figure(kind="lines", x="epoch", y=metric)
        (panel,) = make_panels(study, observations, figure)
        is_shared = metric != "train.loss"
        with report_style() as plt:
            save_canvas(_draw_many(plt, panel, PAGE, is_shared=is_shared), target)
            drawn[target] = to_svg(_draw_many(plt, panel, PHONE, is_shared=is_shared))
        write_numbers([panel], target.with_suffix(".csv"))
    return drawn


def _draw_few(plt: Any, panels: Sequence[Panel], figure: Figure, layout: Layout) -> Any:
    size = (layout.width_inches, measure_ours(panels, figure, layout))
    canvas = plt.figure(figsize=size, layout="constrained")
    draw_ours(canvas, panels, figure, layout)
    return canvas


def _draw_many(plt: Any, panel: Panel, layout: Layout, *, is_shared: bool) -> Any:
    """Draws small multiples; the losses of different arms have different scales."""
    columns, width = _COLUMNS[layout], layout.width_inches
    rows = -(-len(panel.series) // columns)
    height = 1.15 * rows + 0.75
    # Margins are fixed in inches: a layout engine would be slow with many axes.
    margins = {
        "left": 0.62 / width,
        "right": 1 - 0.1 / width,
        "bottom": 0.45 / height,
        "top": 1 - 0.25 / height,
    }
    canvas, grid = plt.subplots(
        rows,
        columns,
        figsize=(width, height),
        squeeze=False,
        gridspec_kw={**margins, "wspace": 0.3, "hspace": 0.42},
    )
    for axes in grid.flat:
        axes.set_visible(False)
    for number, (axes, series) in enumerate(zip(grid.flat, panel.series, strict=False)):
        axes.set_visible(True)
        others = [s for s in panel.series if s is not series] if is_shared else []
        _draw_small(axes, series, others, letters=_NAME_LETTERS[layout])
        _set_small_axes(axes, panel.points if is_shared else series.points, panel)
        is_lowest = number + columns >= len(panel.series)
        axes.tick_params(labelbottom=is_lowest, labelleft=not is_shared or not number % columns)
    canvas.text(0.5, 0.08 / height, "epoch", ha="center", fontsize=9)
    label = plain(label_metric(panel.metric))
    canvas.text(0.08 / width, 0.5, label, va="center", rotation=90, fontsize=9)
    return canvas


def _set_small_axes(axes: Any, points: Sequence[Point], panel: Panel) -> None:
    axes.set_ylim(*find_limits(points, metric=panel.metric, from_zero=False))
    set_unit(axes.yaxis, panel.metric)
    axes.yaxis.get_major_locator().set_params(nbins=3)
    epochs = panel.xs
    if epochs:
        reach = 0.05 * (epochs[-1] - epochs[0]) or 0.5
        axes.set_xlim(epochs[0] - reach, epochs[-1] + reach)
        axes.set_xticks(sorted({epochs[0], epochs[-1]}))


def _draw_small(axes: Any, series: Series, others: list[Series], *, letters: int) -> None:
    for other in others:
        axes.plot(*_means(other), color=MISSING, linewidth=0.5, alpha=0.7)
    xs, means = _means(series)
    points = [point for point in series.points if point.mean is not None]
    lows = [p.mean if p.low is None else p.low for p in points]
    highs = [p.mean if p.high is None else p.high for p in points]
    axes.fill_between(xs, lows, highs, color=COLORS[0], alpha=0.2, linewidth=0)
    axes.plot(xs, means, color=COLORS[0], linewidth=1.4)
    name, half = series.name, letters // 2
    if len(name) > letters:
        name = f"{name[: half - 1]}…{name[-half:]}"
    axes.set_title(plain(name), fontsize=6.6, pad=3)
    axes.tick_params(labelsize=6.5)
    if not points:
        axes.text(0.5, 0.5, NO_SCORE, transform=axes.transAxes, ha="center", va="center",
                  fontsize=7.5, color=MUTED, style="italic")  # fmt: skip
        axes.set_facecolor("#f4f4f4")


def _means(series: Series) -> tuple[list[float], list[float]]:
    points = [point for point in series.points if point.mean is not None]
    return [point.x for point in points], [float(point.mean or 0) for point in points]


FILE_NAME = "embedding_map.csv"
MOST_NAMES = 80
_MOST_LETTERS = 18


def draw_embedding_map(source: Path, target: Path) -> bytes:
    """Writes the map of embeddings as PNG and SVG; returns the one for phones.

    Without embeddings nothing is written, and the result is empty.
    """
    if not source.is_file():
        return b""
    with open(source, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return b""
    places = np.array([[float(row["x"]), float(row["y"])] for row in rows])
    names = np.array([restore_cell(row["class"]) for row in rows])
    with report_style() as plt:
        save_canvas(_draw_map(plt, places, names, PAGE), target)
        return to_svg(_draw_map(plt, places, names, PHONE))


def _draw_map(plt: Any, places: np.ndarray, names: np.ndarray, layout: Layout) -> Any:
    width = layout.width_inches
    canvas, axes = plt.subplots(figsize=(width, 0.86 * width), layout="constrained")
    classes = list(dict.fromkeys(names.tolist()))
    for number, name in enumerate(classes):
        _draw_class(axes, places[names == name], number)
    if len(classes) <= MOST_NAMES:
        for name in classes:
            _write_name(axes, places[names == name], name)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    for spine in axes.spines.values():
        spine.set_visible(False)
    text = "a map of the embeddings: near is alike, the directions mean nothing"
    axes.set_xlabel(textwrap.fill(text, layout.letters))
    return canvas


def _draw_class(axes: Any, places: np.ndarray, number: int) -> None:
    axes.scatter(
        places[:, 0], places[:, 1], s=13, color=COLORS[number % len(COLORS)],
        marker=MARKERS[number % len(MARKERS)], alpha=0.65, linewidths=0, rasterized=True,
    )  # fmt: skip


def _write_name(axes: Any, places: np.ndarray, name: str) -> None:
    """Writes a class's name at its member nearest to the median."""
    from matplotlib import patheffects

    middle = np.median(places, axis=0)
    at = places[np.argmin(((places - middle) ** 2).sum(axis=1))]
    short = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"
    axes.annotate(
        plain(short), at, fontsize=8, ha="center", va="center", color=INK, weight="bold",
        path_effects=[patheffects.withStroke(linewidth=2.2, foreground="white")],
    )  # fmt: skip


GRID_FILE = "retrieval.png"
_INTERVALS = "Means over the seeds; bands and whiskers are 95 % intervals."
_CURVES = {
    "curves": f"Learning curves: validation score and training loss. {_INTERVALS}",
    "curves-validation": (f"Validation score of every arm, the other arms in grey. {_INTERVALS}"),
    "curves-loss": f"Training loss of every arm, each on its own scale. {_INTERVALS}",
}


def draw_figures(study: ResolvedStudy, observations: Observations, folder: Path) -> list[Picture]:
    """Writes the study's figures to a folder: figure, figure-2, and so on; the main one first.

    A study with two or more false match rates also has the curve over them.
    """
    definition = study.definition
    listed = [definition.figure, *definition.figures]
    if not any(MATCH_CURVE in figure.y for figure in listed):
        listed += _make_match_figure(study)
    pictures = []
    for number, figure in enumerate(listed, start=1):
        stem = folder / ("figure" if number == 1 else f"figure-{number}")
        published = definition.published if number == 1 else ()
        draw_figure(study, observations, figure, target=stem, published=published)
        narrow = draw_for_phone(study, observations, figure, published=published)
        title = figure.title or definition.question
        metrics = ", ".join(dict.fromkeys(map(name_metric, figure.y)))
        beside = " Below, on grey: what the papers printed." if published else ""
        pictures.append(
            embed_figure(
                stem,
                name=study.name,
                caption=_describe_intervals(figure.kind) + beside,
                alt=f"{title} {metrics} as a figure; its numbers are in the CSV file.",
                narrow=narrow,
            )
        )
    return pictures


MATCH_CURVE = "test.fnmr_at_fmr_*"


def _make_match_figure(study: ResolvedStudy) -> list[Figure]:
    rates = {len(study.arm_config(arm.name).evaluation.match_rates) for arm in study.arms}
    if max(rates) < 2:
        return []
    title = "Pairs of one class that are missed, over the false match rate"
    return [Figure(kind="lines", x="*", y=(MATCH_CURVE,), log_x=True, title=title)]


def draw_pictures(
    study: ResolvedStudy, observations: Observations, *, evaluate_folder: Path, folder: Path
) -> list[Picture]:
    """Writes learning curves and the map of embeddings, and returns them with the retrievals."""
    pictures = []
    grid = evaluate_folder / GRID_FILE
    if grid.is_file():
        caption = (
            "What the best model finds: left the query, then the nearest test images. A solid "
            "blue frame with a tick: the same class; a dashed orange one with a cross: another."
        )
        pictures.append(embed_pixels(grid, caption=caption, alt="Queries and their neighbours"))
    if narrow := draw_embedding_map(evaluate_folder / FILE_NAME, folder / "map"):
        caption = "Test images of the best model in two dimensions; a colour and a mark a class."
        drawn = embed_figure(folder / "map", name=study.name, caption=caption, narrow=narrow)
        pictures.append(drawn)
    for stem, narrow in draw_learning_curves(study, observations, folder=folder).items():
        caption = _CURVES[stem.name]
        drawn = embed_figure(stem, name=study.name, caption=caption, narrow=narrow)
        pictures.append(drawn)
    return pictures


def _describe_intervals(kind: str) -> str:
    if kind == "heatmap":
        return "Means over the seeds with half of their 95 % intervals."
    return "Means over the seeds." if kind == "matrices" else _INTERVALS


MOST_DRAWN = 60
"""Older results are left out, or the labels of commits would overlap."""


def draw_history(results: Sequence[Result], target: Path, *, title: str) -> list[Path]:
    """Draws a study's scores over time as PNG and SVG; returns both paths.

    Args:
        results: of one study, the oldest first; those with the newest one's metric are drawn.
        target: path without a suffix.
        title: of the figure.
    """
    shown = [r for r in results if r.metric == results[-1].metric][-MOST_DRAWN:]
    unit = unit_of(shown[-1].metric)
    with report_style() as plt:
        width = max(6.0, min(14.0, 0.45 * len(shown) + 2.5))
        canvas, axes = plt.subplots(figsize=(width, 4.2), layout="constrained")
        _draw_arms(axes, shown, unit)
        hashes = list(dict.fromkeys(result.data_hash for result in shown))
        for number, data_hash in enumerate(hashes):
            _draw_champions(axes, shown, data_hash, number, unit)
        _mark_accepted(axes, shown, unit)
        _name_axes(axes, shown, unit)
        axes.set_title(plain(title))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        save_canvas(canvas, target)
    return [target.with_suffix(".png"), target.with_suffix(".svg")]


def _draw_arms(axes: Any, shown: Sequence[Result], unit: Unit) -> None:
    """Draws the means of the other arms as small grey points."""
    points = [
        (place, unit.factor * fmean(scores.values()))
        for place, result in enumerate(shown)
        for arm, scores in result.scores.items()
        if arm != result.champion and scores
    ]
    if points:
        places, means = zip(*points, strict=True)
        axes.scatter(places, means, s=8, color=MUTED, alpha=0.5, label="other arms", linewidths=0)


def _draw_champions(
    axes: Any, shown: Sequence[Result], data_hash: str, number: int, unit: Unit
) -> None:
    for place, result in enumerate(shown):
        if result.data_hash != data_hash:
            continue
        low, mean, high = (unit.factor * value for value in champion_interval(result))
        first = next(p for p, r in enumerate(shown) if r.data_hash == data_hash)
        axes.errorbar(
            [place], [mean], yerr=[[mean - low], [high - mean]], capsize=2.5,
            color=COLORS[number % len(COLORS)], marker=MARKERS[number % len(MARKERS)],
            label=f"data {data_hash[:12]}" if place == first else None,
        )  # fmt: skip


def champion_interval(result: Result) -> tuple[float, float, float]:
    """Returns low, mean and high of the champion; all equal with a single seed."""
    values = list(result.scores.get(result.champion, {}).values())
    if len(values) < 2:
        only = values[0] if values else float("nan")
        return only, only, only
    found = estimate_mean(np.array(values))
    return float(found.low), float(found.mean), float(found.high)


def _mark_accepted(axes: Any, shown: Sequence[Result], unit: Unit) -> None:
    points = [
        (place, unit.factor * champion_interval(result)[1])
        for place, result in enumerate(shown)
        if result.accepted
    ]
    if points:
        places, means = zip(*points, strict=True)
        axes.scatter(
            places, means, s=110, facecolors="none", edgecolors=INK, label="accepted", zorder=3
        )


def _name_axes(axes: Any, shown: Sequence[Result], unit: Unit) -> None:
    names = [f"{result.time[:10]}\n{result.commit[:8] or 'no commit'}" for result in shown]
    axes.set_xticks(range(len(shown)), [plain_lines(name) for name in names], rotation=90)
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_ylabel(
        f"champion's {shown[-1].metric}{f' ({unit.name.strip()})' if unit.name else ''}"
    )
