"""Checks what a source says of its images before any of them is read."""

import math
from collections import Counter
from collections.abc import Iterable

from dml_core.data.records import DatasetError, ImageRecord


def sort_and_check(records: Iterable[ImageRecord], *, dataset: str) -> list[ImageRecord]:
    """Returns the records sorted by path.

    Raises:
        DatasetError: without any image, for a path that stands twice, for records with other
            continuous labels than the rest, and for labels that are not finite.
    """
    ordered = sorted(records, key=lambda record: record.path)
    if not ordered:
        raise DatasetError(f"dataset {dataset!r} must have images. Found none. Check data.raw.")
    _check_paths_are_unique(ordered, dataset)
    columns = set(ordered[0].continuous)
    for record in ordered:
        _check_continuous_labels(record, columns, dataset)
    return ordered


def keep_first_of_each_class(records: list[ImageRecord], number: int) -> list[ImageRecord]:
    """Returns the first images of each class and role in the given order; all of them for 0."""
    if number == 0:
        return records
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for record in records:
        key = (record.class_name, record.role)
        if seen[key] < number:
            kept.append(record)
        seen[key] += 1
    return kept


def _check_paths_are_unique(records: list[ImageRecord], dataset: str) -> None:
    twice = [path for path, count in Counter(r.path for r in records).items() if count > 1]
    if twice:
        raise DatasetError(
            f"dataset {dataset!r} must list each image once, or it could be on both sides of a "
            f"split. Listed more often: {len(twice)}, first {twice[0]!r}. Remove the repetitions."
        )


def _check_continuous_labels(record: ImageRecord, columns: set[str], dataset: str) -> None:
    if set(record.continuous) != columns:
        raise DatasetError(
            f"dataset {dataset!r}: image {record.path!r} must have the continuous labels "
            f"{sorted(columns)} as the first image has. Got {sorted(record.continuous)}."
        )
    for name, value in record.continuous.items():
        if not math.isfinite(value):
            raise DatasetError(
                f"dataset {dataset!r}: image {record.path!r} must have a finite {name!r}, since "
                f"distances are computed from it. Got {value}. Mend or remove the row."
            )
