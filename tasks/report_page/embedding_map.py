"""Draws the map of the test embeddings: each image a point, each class a colour and a mark."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from dml_core.data.spreadsheet_cells import restore_cell
from tasks.report_page.figure import save_canvas
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
