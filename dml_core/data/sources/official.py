"""Checks a published dataset against its official numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dml_core.data.records import ImageRecord, SourceListing
from dml_core.data.sources.distribution import Distribution
from dml_core.data.sources.presence import missing_files
from dml_core.data.sources.problems import raise_for


@dataclass(frozen=True)
class OfficialCounts:
    """How many classes and images each side of the official split has."""

    train_classes: int
    train_images: int
    test_classes: int
    test_images: int
    """All images that are not for training: query and gallery together, where there are both."""
    query_images: int = 0
    gallery_images: int = 0


def official_listing(
    records_by_list: Mapping[str, Sequence[ImageRecord]],
    *,
    root: Path,
    distribution: Distribution,
    counts: OfficialCounts,
    other_problems: Sequence[str] = (),
) -> SourceListing:
    """Returns the checked listing of a published dataset, sorted by path.

    Args:
        records_by_list: the records by the name of the annotation that lists them.
        root: folder that holds every file.
        distribution: what the dataset is, for the error's words.
        counts: the numbers that make it the official dataset.
        other_problems: what the source itself found wrong.

    Raises:
        DatasetError: with missing files, repeated ones, and counts that differ.
    """
    records = [record for group in records_by_list.values() for record in group]
    absent = [
        line for listed_in, group in records_by_list.items() for line in _absent(group, listed_in)
    ]
    raise_for(
        f"dataset {distribution.name!r} at {root}",
        [count_problems(records, counts), list(other_problems), absent, _repeated(records)],
        advice="Scores on a partial or altered dataset compare with nobody's. The download or "
        f"its unpacking is perhaps unfinished. {distribution.advice()}",
    )
    return SourceListing(records=sorted(records, key=lambda record: record.path), root=root)


def count_problems(records: Sequence[ImageRecord], counts: OfficialCounts) -> list[str]:
    """Returns a line for each official number that the records do not meet.

    Images count once, also where a record is repeated; files are not looked at.
    """
    found = _count(records)
    problems = []
    for field, expected in vars(counts).items():
        actual = getattr(found, field)
        if actual != expected:
            what = field.replace("_", " ")
            problems.append(f"{what} must be {expected:,}, found {actual:,}.")
    shared = {r.class_name for r in records if r.role == "train"} & {
        r.class_name for r in records if r.role != "train"
    }
    if shared:
        problems.append(
            f"train and test must share no class, found {len(shared):,}, as {min(shared)}."
        )
    return problems


def _count(records: Sequence[ImageRecord]) -> OfficialCounts:
    train = [r for r in records if r.role == "train"]
    test = [r for r in records if r.role != "train"]
    return OfficialCounts(
        train_classes=len({r.class_name for r in train}),
        train_images=len({r.path for r in train}),
        test_classes=len({r.class_name for r in test}),
        test_images=len({r.path for r in test}),
        query_images=len({r.path for r in test if r.role == "query"}),
        gallery_images=len({r.path for r in test if r.role == "gallery"}),
    )


def _absent(records: Sequence[ImageRecord], listed_in: str) -> list[str]:
    names = {record.file: record.path for record in records if record.file is not None}
    missing = missing_files(names)
    if not missing:
        return []
    total = f"{listed_in} lists {len(names):,} images, found {len(names) - len(missing):,} of them."
    return [total, *(f"{names[file]} is listed in {listed_in} but missing." for file in missing)]


def _repeated(records: Sequence[ImageRecord]) -> list[str]:
    seen: set[str] = set()
    lines = []
    for record in records:
        if record.path in seen:
            lines.append(f"{record.path} is listed twice.")
        seen.add(record.path)
    return lines
