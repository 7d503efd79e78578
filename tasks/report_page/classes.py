"""The classes of a report: the worst ones by name, and scores by the size of a class."""

from pathlib import Path

from dml_core.measures.class_scores import (
    WORST_FILE,
    ClassScore,
    find_worst,
    group_by_size,
    read_classes,
)
from tasks.report_page.page import Picture, embed_pixels
from tasks.report_page.style import show_number
from tasks.report_page.tables import Cell, Table

_METRIC = "test.recall_at_1"


def make_class_tables(evaluate_folder: Path) -> list[Table]:
    """Returns the worst classes of the best model, and its R@1 by the size of a class.

    A table that would say nothing is absent: no class fails, or all have about one size.
    """
    scores = read_classes(evaluate_folder)
    return [*_make_worst_table(scores), *_make_size_table(scores)]


def embed_worst_classes(evaluate_folder: Path) -> list[Picture]:
    """Returns the picture of the worst classes, if there is one."""
    path = evaluate_folder / WORST_FILE
    if not path.is_file():
        return []
    caption = (
        "The classes with the lowest R@1 of the best model: left a query that fails, with the name "
        "of its class, then the nearest test images."
    )
    alt = "A failed query of each of the worst classes, and its neighbours"
    return [embed_pixels(path, caption=caption, alt=alt)]


def _make_worst_table(scores: list[ClassScore]) -> list[Table]:
    worst = find_worst(scores)
    if not worst:
        return []
    rows = [
        [
            Cell(score.name, key=score.name, kind="name"),
            _show_recall(score.recall_at_1),
            Cell(str(score.num_images), key=score.num_images),
            Cell(score.found_instead, key=score.found_instead, kind="name"),
        ]
        for score in worst
    ]
    caption = f"The worst of {len(scores)} test classes, by the best model"
    return [Table(caption, ["class", "R@1 (%)", "images", "mostly found instead"], rows)]


def _make_size_table(scores: list[ClassScore]) -> list[Table]:
    groups = group_by_size(scores)
    if len(groups) < 2:
        return []
    rows = []
    for group in groups:
        is_one = group.smallest == group.largest
        text = str(group.smallest) if is_one else f"{group.smallest} to {group.largest}"
        rows.append(
            [
                Cell(text, key=group.smallest, kind="name"),
                _show_recall(group.recall_at_1),
                Cell(str(group.num_classes), key=group.num_classes),
            ]
        )
    caption = "R@1 of the best model by the size of a test class"
    return [Table(caption, ["images of a class", "R@1 (%)", "classes"], rows)]


def _show_recall(value: float) -> Cell:
    return Cell(show_number(value, _METRIC), key=value)
