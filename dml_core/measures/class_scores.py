"""Scores by class: which classes a model confuses, and whether the size of a class matters."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dml_core.data.spreadsheet_cells import protect_cell, restore_cell

CLASSES_FILE = "classes.csv"
WORST_FILE = "worst_classes.png"
"""Drawn by `dml_core.measures.class_evaluation`."""
NUM_WORST = 8
"""Classes that are named and drawn."""
MAX_GROUPS = 5
_COLUMNS = ("class", "images", "queries", "recall_at_1", "found_instead")


@dataclass(frozen=True)
class ClassScore:
    """The score of one test class."""

    name: str
    num_images: int
    num_queries: int
    """Its images that are searched and have another image of the class to find."""
    recall_at_1: float
    """Share of these whose nearest image has the class."""
    found_instead: str
    """The most frequent class of the other nearest images; empty if there are none."""


@dataclass(frozen=True)
class SizeGroup:
    """The score of the classes with about as many images."""

    smallest: int
    """Images of the smallest class."""
    largest: int
    num_classes: int
    recall_at_1: float
    """Mean over the queries of these classes."""


def find_worst(scores: Sequence[ClassScore], *, count: int = NUM_WORST) -> list[ClassScore]:
    """Returns the classes with the lowest R@1, the lowest first; among equals the larger ones.

    A class in which nothing fails is not among them.
    """
    wrong = [score for score in scores if score.recall_at_1 < 1]
    return sorted(wrong, key=lambda s: (s.recall_at_1, -s.num_queries, s.name))[:count]


def group_by_size(scores: Sequence[ClassScore], *, max_groups: int = MAX_GROUPS) -> list[SizeGroup]:
    """Returns groups of classes by size: one a size, or about equally many classes in each.

    Classes of equal size stay together.
    """
    sizes = sorted(score.num_images for score in scores)
    edges = sorted(set(sizes))
    if len(edges) > max_groups:
        places = range(0, len(sizes), -(-len(sizes) // max_groups))
        edges = sorted({sizes[place] for place in places})
    groups = []
    for number, edge in enumerate(edges):
        above = edges[number + 1] if number + 1 < len(edges) else sizes[-1] + 1
        members = [score for score in scores if edge <= score.num_images < above]
        hits = sum(score.recall_at_1 * score.num_queries for score in members)
        largest = max(score.num_images for score in members)
        total = sum(score.num_queries for score in members)
        groups.append(SizeGroup(edge, largest, len(members), hits / total))
    return groups


def write_class_scores(scores: Sequence[ClassScore], folder: Path) -> Path:
    """Writes classes.csv and returns its path.

    A class name that a spreadsheet would read as a formula is prefixed with an apostrophe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CLASSES_FILE
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for score in scores:
            name, instead = protect_cell(score.name), protect_cell(score.found_instead)
            recall = round(score.recall_at_1, 6)
            writer.writerow([name, score.num_images, score.num_queries, recall, instead])
    return path


def read_classes(folder: Path) -> list[ClassScore]:
    """Returns the scores of classes.csv; none without the file."""
    path = folder / CLASSES_FILE
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [
            ClassScore(
                restore_cell(row["class"]),
                int(row["images"]),
                int(row["queries"]),
                float(row["recall_at_1"]),
                restore_cell(row["found_instead"]),
            )
            for row in csv.DictReader(file)
        ]
