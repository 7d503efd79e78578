"""Reads the annotations of published datasets and checks the official counts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dml_core.data.records import DatasetError, ImageRecord, SourceListing, missing_files, raise_for
from dml_core.data.sources.raw_search import Distribution


def read_rows(file: Path, *, columns: str, skip_lines: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the fields of each non-blank line.

    Args:
        file: the annotation, UTF-8 text with fields separated by spaces.
        columns: names of the fields, such as `image_id path`; the last may contain spaces.
        skip_lines: number of header lines.
    """
    num_columns = len(columns.split())
    for number, line in enumerate(read_lines(file)[skip_lines:], start=skip_lines + 1):
        fields = line.split(maxsplit=num_columns - 1)
        if not fields:
            continue
        if len(fields) < num_columns:
            raise line_error(file, number, f"must have the fields `{columns}`", line)
        yield number, [field.strip() for field in fields]


def read_lines(file: Path) -> list[str]:
    """Returns the lines of a text file; raises DatasetError if it is not readable UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{file} must be UTF-8 text, because it lists the images. Got other bytes at position "
            f"{error.start:,}. Download it again."
        ) from error
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error.strerror}. Check it.") from error


def whole_number(text: str, file: Path, line_number: int) -> int:
    """Returns the field as a whole number; otherwise raises DatasetError with the line."""
    if not (text.isascii() and text.isdigit()):
        raise line_error(file, line_number, "must have a whole number here", text)
    return int(text)


def inside_path(text: str, file: Path, line_number: int) -> PurePosixPath:
    """Returns the field as a relative path; raises DatasetError if it would leave the folder."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\0" in text:
        raise line_error(file, line_number, "must name an image inside the dataset's folder", text)
    return path


def line_error(file: Path, line_number: int, rule: str, found: str) -> DatasetError:
    """Returns the error for one line of an annotation."""
    shown = found if len(found) <= 80 else found[:77] + "..."
    return DatasetError(
        f"{file} line {line_number} {rule}, as in the official file. Got {shown!r}. The download "
        "may be truncated or altered: download it again."
    )


@dataclass(frozen=True)
class OfficialCounts:
    """Numbers of classes and images on each side of the official split."""

    train_classes: int
    train_images: int
    test_classes: int
    test_images: int
    """All images that are not for training, including query and gallery."""
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
        records_by_list: the records by the name of their annotation.
        root: folder that contains all files.
        distribution: the dataset, for error messages.
        counts: the official counts.
        other_problems: problems found by the source.

    Raises:
        DatasetError: with missing files, repeated files, and wrong counts.
    """
    records = [record for group in records_by_list.values() for record in group]
    absent = [
        line for listed_in, group in records_by_list.items() for line in _absent(group, listed_in)
    ]
    raise_for(
        f"dataset {distribution.name!r} at {root}",
        [count_problems(records, counts), list(other_problems), absent, _repeated(records)],
        advice="Scores on a partial or altered dataset are not comparable. The download or its "
        f"unpacking may be incomplete. {distribution.advice()}",
    )
    return SourceListing(records=sorted(records, key=lambda record: record.path), root=root)


def count_problems(records: Sequence[ImageRecord], counts: OfficialCounts) -> list[str]:
    """Returns one line for each count that differs from the official one.

    A repeated record counts once; files are not read.
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
            f"train and test must share no class, found {len(shared):,}, such as {min(shared)}."
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
