"""Turns a listing of images into a prepared dataset on disk."""

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
from dml_core.data.writing import PreparationJob, Progress, is_too_many, write_dataset


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


def prepare_dataset(
    listing: SourceListing,
    config: DataBase,
    *,
    on_progress: Progress | None = None,
    workers: int | None = None,
) -> PreparedInfo:
    """Packs the listed images below data.prepared_root, and returns what was made.

    Development and test images go to folders of their own, so that whoever opens the one cannot
    read the other. The folder appears whole at the end or not at all. It is left as it is when
    it was made from the same bytes with the same values; running this twice is therefore safe.

    Args:
        listing: all images of the dataset.
        config: the dataset's section of the configuration.
        on_progress: called with (images done, images in all); starts anew when a check of an
            older folder turns into packing.
        workers: processes that read images; None takes every core. Never changes a byte.

    Raises:
        DatasetError: for too few classes, and for bad images and images in two splits as the
            configuration says.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be >= 1, or None for every core. Got {workers}.")
    records = sort_and_check(listing.records, dataset=config.folder_name)
    # Only what was downloaded has the knob; drawn data has no more images than it was asked for.
    records = keep_first_of_each_class(records, getattr(config, "max_images_per_class", 0))
    split = split_classes(records, config)
    target = config.prepared_path
    # Drawn images are in memory already; sending them to other processes costs more than it saves.
    is_drawn = any(record.pixels is not None for record in records)
    reading = 1 if is_drawn else workers or count_cores()
    job = PreparationJob(records, listing.root, config, split, reading, on_progress)
    with folder_lock(target):
        remove_leftovers(target)
        _check_target_is_ours(target)
        former = _find_reusable(target, job)
        if former is not None:
            return former
        with replaced_folder(target) as partial:
            return write_dataset(partial, job)


def _check_target_is_ours(target: Path) -> None:
    # A mistaken prepared_root may point at somebody's photographs, which must not be replaced.
    if not target.exists() or (target / prepared_info.FILE_NAME).exists():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise DatasetError(
            f"{target} must be free or hold a prepared dataset, since preparing replaces it. "
            f"Found something without {prepared_info.FILE_NAME}. Move it away, or set "
            "data.prepared_root to another folder."
        )


def _find_reusable(target: Path, job: PreparationJob) -> PreparedInfo | None:
    """Returns the former dataset if it is whole and of the same bytes and values."""
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
    # Hashing is so much cheaper than decoding that starting processes for it takes longer.
    with closing(job.run(digest, workers=1)) as digests:
        found = compute_source_hash(job.records, list(digests), job.choices)
    return info if found == info.source_hash else None


def _has_same_values(info: PreparedInfo, job: PreparationJob) -> bool:
    # Data of a version that looked for no duplicates may have leaks, so they are made anew.
    if not info.duplicates:
        return False
    former = dict(info.values)
    rule = former.pop("on_leak", None)
    return former == job.values and rule in (None, job.config.leak_rule)


def _accepts_refused(number: int, job: PreparationJob) -> bool:
    if number and job.config.on_bad_image == "fail":
        return False
    return not is_too_many(number, len(job.records), job.config)
