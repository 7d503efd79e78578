"""Lists the images that a user's CSV or Parquet table names."""

import math
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dml_core.config.data import FolderData
from dml_core.config.problems import suggest
from dml_core.data.records import (
    DatasetError,
    ImageRecord,
    Role,
    SourceListing,
    missing_files,
    raise_for,
    shorten_text,
)


@dataclass(frozen=True)
class Table:
    """A user's table, with the row numbers that the user sees."""

    file: Path
    frame: pd.DataFrame
    """The fields by column; CSV fields are text, Parquet fields keep their type."""

    def row_numbers(self) -> list[int]:
        """Returns the row numbers: for CSV as in a spreadsheet (header 1), for Parquet from 1."""
        return [int(index) + 1 for index in self.frame.index]

    def text(self, column: str) -> list[str]:
        """Returns a column as unchanged text; a missing value is an empty text."""
        values = self.frame[column].astype(object)
        return ["" if _is_missing(value) else str(value) for value in values]

    def numbers(self, column: str) -> list[float]:
        """Returns a column as numbers; NaN for values that are not numbers."""
        return [_to_number(value) for value in self.frame[column].astype(object)]


def read_table(file: Path) -> Table:
    """Returns the table in a .csv or .parquet file.

    Raises:
        DatasetError: if it cannot be read, has duplicate columns, or another suffix.
    """
    suffix = file.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise DatasetError(f"data.table must end in .csv or .parquet. Got {file.name!r}.")
    table = _read_csv(file) if suffix == ".csv" else _read_parquet(file)
    names = [str(name) for name in table.frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DatasetError(
            f"{file} must have columns with unique names. Found twice: {', '.join(repeated)}. "
            "Rename one."
        )
    return table


def _is_missing(value: Any) -> bool:
    return pd.api.types.is_scalar(value) and bool(pd.isna(value))


def _to_number(value: Any) -> float:
    # Python's float reads text exactly. True, 1_000 and a list of one number, which a Parquet
    # cell may hold, are not measurements.
    if isinstance(value, bool | np.bool_ | np.ndarray) or "_" in str(value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _read_csv(file: Path) -> Table:
    try:
        # No header row, because pandas renames duplicate columns silently. No NA words, because
        # "NA", "null" and "nan" are valid class names.
        frame = pd.read_csv(
            file,
            header=None,
            dtype=str,
            keep_default_na=False,
            na_values=[],
            skip_blank_lines=False,
            encoding="utf-8-sig",
        ).fillna("")
    except pd.errors.EmptyDataError as error:
        raise DatasetError(
            f"{file} must have a header row, found an empty file. Add rows."
        ) from error
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{file} must be UTF-8 text. Got other bytes at position {error.start:,}. "
            "Save it as CSV with encoding UTF-8."
        ) from error
    except (pd.errors.ParserError, OSError) as error:
        raise DatasetError(
            f"{file} must be a CSV with as many fields in each row as in the first. {error}. "
            "Quote fields that contain a comma with double quotes."
        ) from error
    header = [str(name).strip() for name in frame.iloc[0]]
    body = frame.iloc[1:].set_axis(header, axis="columns")
    # Spreadsheets leave empty columns, and pandas writes its index with an empty name.
    body = body.loc[:, [name != "" for name in header]]
    # Blank lines are dropped after numbering, so that row numbers match the file.
    return Table(file=file, frame=body[(body != "").any(axis="columns")])


def _read_parquet(file: Path) -> Table:
    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{file} must be a Parquet file. It cannot be read: {error}. Write it again."
        ) from error
    # A named index is a column that pandas set as index; an unnamed one is only a counter.
    frame = frame.reset_index(drop=None in frame.index.names)
    return Table(file=file, frame=frame.set_axis([str(name) for name in frame], axis="columns"))


_ROLES: Mapping[str, Role] = {
    "train": "train",
    "test": "test",
    "query": "query",
    "gallery": "gallery",
}


def read_roles(words: Sequence[str]) -> list[Role | None]:
    """Returns the role of each word, ignoring case; None for an unknown word."""
    return [_ROLES.get(word.strip().lower()) for word in words]


def role_problems(
    config: FolderData, table: Table, roles: Sequence[Role | None], classes: Sequence[str]
) -> list[str]:
    """Returns one line for each unknown word, and for a split that cannot be evaluated."""
    unknown = [
        f"row {row}, column {config.split_column!r}: must be one of {', '.join(_ROLES)}. "
        f"Got {shorten_text(word)}.{_hint(word)}"
        for row, word, role in zip(
            table.row_numbers(), table.text(config.split_column), roles, strict=True
        )
        if role is None
    ]
    return unknown or [*_unusable(config.split_column, set(roles)), *_shared(roles, classes)]


def _hint(word: str) -> str:
    if word.strip().lower() in ("val", "valid", "validation", "dev"):
        return " Validation classes are taken from train by data.validation_fraction."
    return suggest(word.strip().lower(), _ROLES)


def _unusable(column: str, roles: set[Role | None]) -> list[str]:
    found = ", ".join(sorted(str(role) for role in roles))
    pair = roles & {"query", "gallery"}
    if "train" not in roles:
        return [f"column {column!r} must have rows with train. Found {found}."]
    if "test" in roles and pair:
        return [f"column {column!r} must have test, or query and gallery. Found {found}."]
    if "test" not in roles and len(pair) < 2:
        return [f"column {column!r} must have rows with test, or query and gallery. Found {found}."]
    return []


def _shared(roles: Sequence[Role | None], classes: Sequence[str]) -> list[str]:
    pairs = list(zip(roles, classes, strict=True))
    train = {name for role, name in pairs if role == "train"}
    shared = sorted(train & {name for role, name in pairs if role != "train"})
    return [
        f"class {shorten_text(name)} must be in train or in test, because test classes are "
        "unseen. Found it in both."
        for name in shared
    ]


# How pandas and numpy write a missing value as text.
_MISSING_WORDS = frozenset({"nan", "NaN", "<NA>", "NaT"})
_MISSING_HINT = " This is how a missing value is written; rename the class if it is a real one."


def list_table(config: FolderData, file: Path) -> SourceListing:
    """Returns the images of a table; paths are relative to the table's folder.

    Every column of finite numbers except path, class and split is a continuous label. Without a
    class column each image is its own class.

    Raises:
        DatasetError: with all problems of all rows; the first ten of each kind are listed.
    """
    table = read_table(file)
    root = file.parent.resolve()
    _check_columns(config, table)
    paths = _normalize(table.text(config.path_column), root)
    classes = table.text(config.class_column) if config.class_column else paths
    roles = read_roles(table.text(config.split_column)) if config.split_column else None
    continuous = _continuous_columns(config, table)
    raise_for(
        str(file),
        [
            _path_problems(config, table, paths, root),
            _class_problems(config, table, classes),
            _number_problems(config, table),
            role_problems(config, table, roles, classes) if roles is not None else [],
        ],
    )
    records = [
        ImageRecord(
            path=path,
            class_name=class_name,
            role=(roles[row] or "undecided") if roles is not None else "undecided",
            file=root / path,
            continuous={name: values[row] for name, values in continuous.items()},
        )
        for row, (path, class_name) in enumerate(zip(paths, classes, strict=True))
    ]
    return SourceListing(records=sorted(records, key=lambda record: record.path), root=root)


def _check_columns(config: FolderData, table: Table) -> None:
    columns = [str(name) for name in table.frame.columns]
    wanted = {
        "data.path_column": config.path_column,
        "data.class_column": config.class_column,
        "data.split_column": config.split_column,
    }
    named = [(key, column) for key, column in wanted.items() if column]
    named += [("data.continuous_labels", column) for column in config.continuous_labels]
    problems = [
        f"{key} names the column {column!r}, which does not exist.{suggest(column, columns)}"
        for key, column in named
        if column not in columns
    ]
    if problems:
        problems.append(f"its columns are {', '.join(map(shorten_text, columns))}.")
        if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
            problems.append("fields must be separated by commas, not by semicolons or tabs.")
    elif table.frame.empty:
        problems.append("it must have at least one row below its header, found none.")
    raise_for(str(table.file), [problems])


def _normalize(texts: Sequence[str], root: Path) -> list[str]:
    """Returns paths without `.` parts, relative to the root if inside it."""
    return [_normalize_one(text, root) for text in texts]


def _normalize_one(text: str, root: Path) -> str:
    if not text.strip():
        return ""
    if posixpath.isabs(text):
        text = os.path.relpath(text, root) if Path(text).is_relative_to(root) else text
    return posixpath.normpath(text)


def _leaves_root(path: str) -> bool:
    return posixpath.isabs(path) or path.split("/", 1)[0] == ".."


def _path_problems(config: FolderData, table: Table, paths: list[str], root: Path) -> list[str]:
    column, originals = config.path_column, table.text(config.path_column)
    first_seen: dict[str, int] = {}
    problems, usable = [], {}
    for row, path, original in zip(table.row_numbers(), paths, originals, strict=True):
        where = f"row {row}, column {column!r}"
        if not path or "\0" in path:
            problems.append(f"{where}: must be a path. Got {shorten_text(original)}.")
        elif _leaves_root(path):
            problems.append(f"{where}: {shorten_text(original)} leaves the folder of the table.")
        elif path in first_seen:
            problems.append(f"{where}: {shorten_text(path)} is also in row {first_seen[path]}.")
        else:
            first_seen[path] = row
            usable[root / path] = where
    return problems + list(_absent_files(usable, root))


def _absent_files(places: dict[Path, str], root: Path) -> Iterator[str]:
    for file in missing_files(places):
        shown = shorten_text(str(file.relative_to(root)))
        hint = " Write paths with / instead of \\." if "\\" in shown else ""
        yield f"{places[file]}: there is no file {shown} beside the table.{hint}"


def _class_problems(config: FolderData, table: Table, classes: list[str]) -> list[str]:
    return [
        f"row {row}, column {config.class_column!r}: must be a class. Got {shorten_text(name)}."
        f"{_MISSING_HINT if name.strip() else ''}"
        for row, name in zip(table.row_numbers(), classes, strict=True)
        if config.class_column and (not name.strip() or name.strip() in _MISSING_WORDS)
    ]


def _number_problems(config: FolderData, table: Table) -> list[str]:
    return [
        f"row {row}, column {name!r}: must be a finite number. Got {shorten_text(text)}."
        for name in dict.fromkeys(config.continuous_labels)
        for row, number, text in zip(
            table.row_numbers(), table.numbers(name), table.text(name), strict=True
        )
        if not math.isfinite(number)
    ]


def _continuous_columns(config: FolderData, table: Table) -> dict[str, list[float]]:
    taken = {config.path_column, config.class_column, config.split_column}
    taken -= set(config.continuous_labels)
    columns = {
        str(name): table.numbers(name) for name in table.frame.columns if str(name) not in taken
    }
    return {name: numbers for name, numbers in columns.items() if all(map(math.isfinite, numbers))}
