"""Prepares a dataset: packs the listed images, split by class, into a folder."""

import functools
import math
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data import prepared_info
from dml_core.data.atomic_folder import folder_lock, remove_leftovers, replaced_folder
from dml_core.data.packing import digest_record
from dml_core.data.parallel import count_cores
from dml_core.data.prepared_info import PreparedInfo, compute_source_hash
from dml_core.data.records import DatasetError, ImageRecord, SourceListing
from dml_core.data.splits import load_split, split_classes
from dml_core.data.writing import (
    MapRecords,
    PreparationJob,
    Progress,
    is_too_many,
    write_dataset,
)


def sort_and_check(records: Iterable[ImageRecord], *, dataset: str) -> list[ImageRecord]:
    """Returns the records sorted by path.

    Raises:
        DatasetError: without images, for duplicate paths, for records with other continuous
            labels than the rest, and for non-finite labels.
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
    """Returns the first `number` images of each class and role; all images for 0."""
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
            f"dataset {dataset!r} must list each image once, because a repeated image could be on "
            f"both sides of a split. Listed more often: {len(twice)}, first {twice[0]!r}. Remove "
            "the repetitions."
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
                f"dataset {dataset!r}: image {record.path!r} must have a finite {name!r}, because "
                f"distances are computed from it. Got {value}. Fix or remove the row."
            )


def prepare_dataset(
    listing: SourceListing,
    config: DataBase,
    *,
    on_progress: Progress | None = None,
    workers: int | None = None,
    map_files: MapRecords | None = None,
) -> PreparedInfo:
    """Packs the listed images below data.prepared_root, and returns the dataset's description.

    Development and test images have separate folders, so that opening one cannot read the other.
    The dataset's folder appears completely at the end or not at all. A folder made from the same
    bytes with the same values is reused, so running this twice is safe.

    Args:
        listing: all images of the dataset.
        config: the dataset's section of the configuration.
        on_progress: called with (images done, total images); restarts if the check of an older
            folder leads to packing.
        workers: processes that read images; None uses all cores. Never changes a byte.
        map_files: reads files, perhaps on other machines; None uses processes of this one.

    Raises:
        DatasetError: for too few classes, and, as configured, for bad images and for images in
            two splits.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be >= 1, or None for all cores. Got {workers}.")
    records = sort_and_check(listing.records, dataset=config.folder_name)
    # Only downloaded datasets have this key.
    records = keep_first_of_each_class(records, getattr(config, "max_images_per_class", 0))
    split = split_classes(records, config)
    target = config.prepared_path
    # Drawn images are already in memory; sending them to other processes costs more than it saves.
    is_drawn = any(record.pixels is not None for record in records)
    reading = 1 if is_drawn else workers or count_cores()
    elsewhere = None if is_drawn else map_files
    job = PreparationJob(records, listing.root, config, split, reading, on_progress, elsewhere)
    with folder_lock(target):
        remove_leftovers(target)
        _check_target_is_free(target)
        former = _find_reusable(target, job)
        if former is not None:
            return former
        with replaced_folder(target) as partial:
            return write_dataset(partial, job)


def _check_target_is_free(target: Path) -> None:
    # A wrong prepared_root may point to other files, which must not be replaced.
    if not target.exists() or (target / prepared_info.FILE_NAME).exists():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise DatasetError(
            f"{target} must be empty or hold a prepared dataset, because preparing replaces it. "
            f"Found other content without {prepared_info.FILE_NAME}. Move it away, or set "
            "data.prepared_root to another folder."
        )


def _find_reusable(target: Path, job: PreparationJob) -> PreparedInfo | None:
    """Returns the existing dataset if it is complete and has the same bytes and values."""
    try:
        info = prepared_info.load_info(target)
        prepared_info.check_file_sizes(info, target, info.files)
        former = load_split(target, split_hash=info.split_hash)
    except DatasetError:
        return None
    present = {*former.development, *former.test}
    if not _has_same_values(info, job) or job.split.restricted_to(present) != former:
        return None
    if not _accepts_refused(info.num_refused, job):
        return None
    digest = functools.partial(digest_record, root=job.root)
    # Hashing is cheap: starting processes for it would take longer.
    with closing(job.run(digest, workers=1)) as digests:
        found = compute_source_hash(job.records, list(digests), job.choices)
    return info if found == info.source_hash else None


def _has_same_values(info: PreparedInfo, job: PreparationJob) -> bool:
    # Data of versions that did not search duplicates may have leaks, so they are prepared again.
    if not info.duplicates:
        return False
    former = dict(info.values)
    rule = former.pop("on_leak", None)
    return former == job.values and rule in (None, job.config.leak_rule)


def _accepts_refused(number: int, job: PreparationJob) -> bool:
    if number and job.config.on_bad_image == "fail":
        return False
    return not is_too_many(number, len(job.records), job.config)
