"""Splits classes into train, validation and test, and stores the split in splits.json."""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data.records import DatasetError, ImageRecord, Role
from dml_core.seeding import numpy_stream

MIN_TRAIN_CLASSES = 2
"""A single class has no negatives."""


@dataclass(frozen=True)
class ClassSplit:
    """Class names by use, each group sorted."""

    development: tuple[str, ...]
    """Classes that a trial may read: training and validation."""
    test: tuple[str, ...]
    """Classes held out for the evaluation."""
    folds: tuple[tuple[str, ...], ...]
    """Validation classes of each fold; the fold trains on the rest of development."""

    def validation_classes(self, fold: int) -> tuple[str, ...]:
        """Returns the validation classes of a fold."""
        return self.folds[fold]

    def train_classes(self, fold: int) -> tuple[str, ...]:
        """Returns the training classes of a fold."""
        held_out = set(self.folds[fold])
        return tuple(name for name in self.development if name not in held_out)

    def restricted_to(self, present: Collection[str]) -> "ClassSplit":
        """Returns the split without classes that have no images left."""
        return ClassSplit(
            development=tuple(name for name in self.development if name in present),
            test=tuple(name for name in self.test if name in present),
            folds=tuple(tuple(name for name in fold if name in present) for fold in self.folds),
        )

    def hash(self) -> str:
        """Returns the sha256 of the split as canonical JSON."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def split_classes(records: Sequence[ImageRecord], config: DataBase) -> ClassSplit:
    """Returns the class split: by official roles first, otherwise by data.test_fraction."""
    by_side = _classes_by_side(records)
    undecided_test = _choose_test_classes(sorted(by_side["undecided"]), config)
    test = by_side["test"] | set(undecided_test)
    development = sorted((by_side["train"] | by_side["undecided"]) - test)
    folds = _choose_folds(development, config) if development else ()
    split = ClassSplit(tuple(development), tuple(sorted(test)), folds)
    check_split_has_enough_classes(split, config)
    check_split_is_disjoint(split)
    return split


def side_of(role: Role) -> str:
    """Returns the side of a role: train, test or undecided."""
    return "test" if role in ("query", "gallery") else role


def check_split_is_disjoint(split: ClassSplit) -> None:
    """Raises DatasetError if a class has two uses."""
    _check_apart("train and test", split.development, split.test)
    seen: set[str] = set()
    for fold in split.folds:
        _check_apart("two validation folds", seen, fold)
        seen.update(fold)
    strangers = sorted(seen - set(split.development))
    if strangers:
        raise DatasetError(
            f"splits hold {list_names(strangers)} in validation but not among the development "
            "classes. Recreate them with: dml prepare"
        )


def check_split_has_enough_classes(split: ClassSplit, config: DataBase) -> None:
    """Raises DatasetError if a side of the split has too few classes."""
    found = f"{len(split.development)} for training and validation, {len(split.test)} for the test"
    if not split.test:
        raise DatasetError(
            f"dataset {config.folder_name!r} must have at least 1 test class, because scores "
            f"are on test classes. Found {found}. Give some classes the role test, or add classes."
        )
    num_train = min(
        (len(split.train_classes(fold)) for fold in range(config.folds))
        if len(split.folds) == config.folds
        else (0,)
    )
    if num_train < MIN_TRAIN_CLASSES or not all(split.folds):
        raise DatasetError(
            f"dataset {config.folder_name!r} has too few classes: {found}. With data.folds="
            f"{config.folds} each fold needs at least 1 validation and {MIN_TRAIN_CLASSES} "
            "training classes. Add classes, or lower data.folds or data.test_fraction."
        )


def _classes_by_side(records: Iterable[ImageRecord]) -> dict[str, set[str]]:
    sides: dict[str, set[str]] = {"train": set(), "test": set(), "undecided": set()}
    roles: set[Role] = set()
    for record in records:
        sides[side_of(record.role)].add(record.class_name)
        roles.add(record.role)
    _check_apart("train and test", sides["train"], sides["test"])
    _check_apart("decided and undecided roles", sides["train"] | sides["test"], sides["undecided"])
    _check_query_has_gallery(roles)
    return sides


def _check_query_has_gallery(roles: set[Role]) -> None:
    present = [role for role in ("test", "query", "gallery") if role in roles]
    if present not in ([], ["test"], ["query", "gallery"]):
        raise DatasetError(
            "test images must all have the role test, or form a query and a gallery set, "
            f"because each query is searched in the gallery. Found only: {', '.join(present)}. "
            "Correct the roles in the dataset's table."
        )


def _choose_test_classes(names: list[str], config: DataBase) -> list[str]:
    if not names:
        return []
    count = min(max(1, round(config.test_fraction * len(names))), len(names))
    if config.test_selection == "last":
        return names[-count:]
    return _shuffled(names, config.split_seed, "test classes")[:count]


def _choose_folds(names: list[str], config: DataBase) -> tuple[tuple[str, ...], ...]:
    order = _shuffled(names, config.split_seed, "validation classes")
    if config.folds == 1:
        wanted = max(1, round(config.validation_fraction * len(names)))
        return (tuple(sorted(order[: min(wanted, len(names) - MIN_TRAIN_CLASSES)])),)
    # Strided slices give folds with sizes that differ by at most one.
    return tuple(tuple(sorted(order[fold :: config.folds])) for fold in range(config.folds))


def _shuffled(names: list[str], seed: int, purpose: str) -> list[str]:
    return [names[index] for index in numpy_stream(seed, purpose).permutation(len(names))]


def _check_apart(places: str, first: Iterable[str], second: Iterable[str]) -> None:
    shared = sorted(set(first) & set(second))
    if shared:
        raise DatasetError(
            f"splits share {list_names(shared)} between {places}, but classes must be disjoint, "
            "because scores are for unseen classes. Correct the roles and run: dml prepare"
        )


def list_names(names: Sequence[str]) -> str:
    """Returns the number of classes and the first names."""
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} class{'es' if len(names) != 1 else ''} ({shown})"


FILE_NAME = "splits.json"


def save_split(split: ClassSplit, folder: Path) -> None:
    """Writes splits.json into the folder."""
    text = json.dumps(asdict(split), indent=1, sort_keys=True, ensure_ascii=False)
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def load_split(folder: Path, *, split_hash: str) -> ClassSplit:
    """Returns the split in a prepared folder.

    Raises:
        DatasetError: if the file is missing, damaged, was changed after it was written, or gives
            a class two uses.
    """
    file = folder / FILE_NAME
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        development, test = tuple(values["development"]), tuple(values["test"])
        split = ClassSplit(development, test, tuple(tuple(fold) for fold in values["folds"]))
        check_split_is_disjoint(split)
    except DatasetError as error:
        raise DatasetError(f"{file}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{file} is missing or damaged ({error!r}). Run: dml prepare") from error
    if split.hash() != split_hash:
        raise DatasetError(
            f"{file} was changed after it was written: its hash is {split.hash()}, and "
            f"dataset.json says {split_hash}. Run: dml prepare"
        )
    return split
