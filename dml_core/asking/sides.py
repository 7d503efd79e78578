"""Checks that a dataset has enough classes to train, validate and test on."""

from collections import Counter
from collections.abc import Collection, Sequence

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError, ImageRecord
from dml_core.data.splits import ClassSplit, split_classes

MIN_CLASSES_PER_SIDE = 2
"""Classes for training, validation and test each; a single class has nothing to tell apart."""
MIN_CLASSES = 3 * MIN_CLASSES_PER_SIDE
MIN_IMAGES = 24
"""Images with continuous labels: fewer leave no batch to train with."""
FEW_CLASSES = {"test_fraction": 0.33, "validation_fraction": 0.4}
"""Gives each side two classes from 6 classes on; the defaults need 12."""


def choose_split(
    records: Sequence[ImageRecord], config: FolderData
) -> tuple[dict[str, float], ClassSplit]:
    """Returns the keys that leave two classes for each side of the split, and the split.

    The keys are empty if the defaults do.

    Raises:
        DatasetError: if there are too few classes, or too few with two images.
    """
    counts = Counter(record.class_name for record in records)
    is_continuous = bool(config.continuous_labels)
    _check_number(counts, is_continuous=is_continuous)
    split = split_classes(records, config)
    keys: dict[str, float] = {}
    if _smallest_side(split) < MIN_CLASSES_PER_SIDE:
        keys = {f"data.{key}": value for key, value in FEW_CLASSES.items()}
        split = split_classes(records, config.model_copy(update=FEW_CLASSES))
    if _smallest_side(split) < MIN_CLASSES_PER_SIDE:
        raise DatasetError(
            f"each side of the split must have {MIN_CLASSES_PER_SIDE} classes, because one class "
            f"has nothing to tell apart. Found {describe_sides(split)} in the column "
            f"{config.split_column!r}. Give more classes to the smaller sides."
        )
    if not is_continuous:
        _check_pairs(counts, split)
    return keys, split


def choose_levels(records: Sequence[ImageRecord]) -> tuple[int, str]:
    """Returns how many folder levels name a class, and a line that says so if folders are nested.

    The first level is the class, as in most datasets. If it has too few folders, such as birds and
    cats with a folder for each animal below them, deeper ones are taken.
    """
    folders = {record.path.rpartition("/")[0] for record in records}
    shared = min(folder.count("/") + 1 for folder in folders)
    names = [_names_at(folders, level) for level in range(1, shared + 1)]
    if len(names) == 1:
        return 1, ""
    enough = (level for level, found in enumerate(names, 1) if len(found) >= MIN_CLASSES)
    levels = next(enough, 1)
    chosen, deeper = names[levels - 1], names[min(levels, shared - 1)]
    text = f"{len(chosen):,} folders of level {levels}, such as {min(chosen)}"
    if len(deeper) > len(chosen):
        more = f"--set data.class_levels={levels + 1}"
        text += f"; the {len(deeper):,} folders below them are classes with {more}"
    elif levels > 1:
        text += f"; level 1 has only {len(names[0])}"
    return levels, text


def _names_at(folders: Collection[str], level: int) -> set[str]:
    return {"/".join(folder.split("/")[:level]) for folder in folders}


def describe_sides(split: ClassSplit) -> str:
    """Returns the number of classes of each side."""
    train, validation, test = (f"{len(side):,}" for side in _sides(split).values())
    return f"{train} to train, {validation} to validate, {test} to test"


def _sides(split: ClassSplit) -> dict[str, tuple[str, ...]]:
    return {
        "training": split.train_classes(0),
        "validation": split.validation_classes(0),
        "test": split.test,
    }


def _smallest_side(split: ClassSplit) -> int:
    return min(map(len, _sides(split).values()))


def _check_number(counts: Counter[str], *, is_continuous: bool) -> None:
    number = len(counts)
    if number == 1 and not is_continuous:
        raise DatasetError(
            f"at least {MIN_CLASSES} classes are needed, because classes are distinguished. Found "
            f"one, {next(iter(counts))!r}. Add other classes, or give the folder that holds them."
        )
    if is_continuous and number < MIN_IMAGES:
        raise DatasetError(
            f"at least {MIN_IMAGES} images are needed to train, to validate and to test. Found "
            f"{number}. Add images."
        )
    if number < MIN_CLASSES:
        raise DatasetError(
            f"at least {MIN_CLASSES} classes are needed: {MIN_CLASSES_PER_SIDE} each to train, to "
            f"validate and to test. Found {number}: {', '.join(sorted(counts))}. Add classes, or "
            "give the folder that holds them."
        )
    if max(counts.values()) == 1 and not is_continuous:
        raise DatasetError(
            "some classes must have two images or more, because images of a class are compared "
            f"with each other. Found one image in each of {number:,} classes. If images of one "
            "class have different folders, put them into one."
        )


def _check_pairs(counts: Counter[str], split: ClassSplit) -> None:
    for side, names in _sides(split).items():
        if all(counts[name] < 2 for name in names):
            raise DatasetError(
                f"some {side} class must have two images or more, because images of a class are "
                f"compared with each other. Found one image in each of its {len(names):,} classes. "
                "Add images, or remove classes with one image."
            )
