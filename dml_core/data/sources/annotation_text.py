"""Reads the text annotations of published datasets, naming the line that is wrong."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from dml_core.data.records import DatasetError


def read_rows(file: Path, *, columns: str, skip_lines: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the fields of each line that is not blank.

    Args:
        file: the annotation, UTF-8 text with fields between spaces.
        columns: the fields' names, such as `image_id path`; the last may hold spaces.
        skip_lines: lines of header above the first row.
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
    """Returns the lines of a text file; a DatasetError if it cannot be read as UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{file} must be UTF-8 text, for it lists the images. Got other bytes at position "
            f"{error.start:,}. Download it again."
        ) from error
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error.strerror}. Check it.") from error


def whole_number(text: str, file: Path, line_number: int) -> int:
    """Returns the field as a positive whole number; a DatasetError that names the line if not."""
    if not (text.isascii() and text.isdigit()):
        raise line_error(file, line_number, "must have a whole number here", text)
    return int(text)


def inside_path(text: str, file: Path, line_number: int) -> PurePosixPath:
    """Returns the field as a relative path; a DatasetError if it would leave the folder."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\0" in text:
        raise line_error(file, line_number, "must name an image inside the dataset's folder", text)
    return path


def line_error(file: Path, line_number: int, rule: str, found: str) -> DatasetError:
    """Returns the error for one line of an annotation."""
    shown = found if len(found) <= 80 else found[:77] + "..."
    return DatasetError(
        f"{file} line {line_number} {rule}, as in the official file. Got {shown!r}. The download "
        "is perhaps cut off or altered: fetch it again."
    )
