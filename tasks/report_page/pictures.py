"""Everything that a report draws, as files and as pictures of its page."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from dml_core.analysis.observations import Observations
from dml_core.data.spreadsheet_cells import restore_cell
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.figure import draw_figure, save_canvas
from tasks.report_page.labels import name_metric
from tasks.report_page.learning_curves import draw_learning_curves
from tasks.report_page.page import Picture, embed_figure, embed_pixels
from tasks.report_page.style import COLORS, INK, MARKERS, plain, report_style

FILE_NAME = "embedding_map.csv"
MOST_NAMES = 80
_MOST_LETTERS = 18


def draw_embedding_map(source: Path, target: Path) -> bool:
    """Writes the map as PNG and SVG; returns whether there was anything to draw."""
    if not source.is_file():
        return False
    with open(source, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return False
    places = np.array([[float(row["x"]), float(row["y"])] for row in rows])
    names = np.array([restore_cell(row["class"]) for row in rows])
    with report_style() as plt:
        canvas, axes = plt.subplots(figsize=(7.2, 6.2), layout="constrained")
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
        axes.set_xlabel("a map of the embeddings: near is alike, the directions mean nothing")
        save_canvas(canvas, target)
    return True


def _draw_class(axes: Any, places: np.ndarray, number: int) -> None:
    axes.scatter(
        places[:, 0], places[:, 1], s=13, color=COLORS[number % len(COLORS)],
        marker=MARKERS[number % len(MARKERS)], alpha=0.65, linewidths=0, rasterized=True,
    )  # fmt: skip


def _write_name(axes: Any, places: np.ndarray, name: str) -> None:
    """Writes a class's name at its member nearest to the middle, so that it lies among them."""
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
    "curves-loss": f"Training loss of every arm, each on a scale of its own. {_INTERVALS}",
}


def draw_figures(study: ResolvedStudy, observations: Observations, folder: Path) -> list[Picture]:
    """Writes the study's figures to a folder: figure, figure-2, and so on; the main one first."""
    definition = study.definition
    pictures = []
    for number, figure in enumerate((definition.figure, *definition.figures), start=1):
        stem = folder / ("figure" if number == 1 else f"figure-{number}")
        published = definition.published if number == 1 else ()
        draw_figure(study, observations, figure, target=stem, published=published)
        title = figure.title or definition.question
        metrics = ", ".join(dict.fromkeys(map(name_metric, figure.y)))
        beside = " Below, on grey: what the papers printed." if published else ""
        pictures.append(
            embed_figure(
                stem,
                name=study.name,
                caption=_describe_intervals(figure.kind) + beside,
                alt=f"{title} {metrics} as a figure; its numbers are in the CSV file.",
            )
        )
    return pictures


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
    if draw_embedding_map(evaluate_folder / FILE_NAME, folder / "map"):
        caption = "Test images of the best model in two dimensions; a colour and a mark a class."
        pictures.append(embed_figure(folder / "map", name=study.name, caption=caption))
    for stem in draw_learning_curves(study, observations, folder=folder):
        pictures.append(embed_figure(stem, name=study.name, caption=_CURVES[stem.name]))
    return pictures


def _describe_intervals(kind: str) -> str:
    if kind == "heatmap":
        return "Means over the seeds with half of their 95 % intervals."
    return "Means over the seeds." if kind == "matrices" else _INTERVALS
