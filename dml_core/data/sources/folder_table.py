"""Lists the images that a user's table names."""

import math
import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

from dml_core.config.data import FolderData
from dml_core.config.problems import suggest
from dml_core.data.records import ImageRecord, SourceListing
from dml_core.data.sources.presence import missing_files
from dml_core.data.sources.problems import raise_for, shorten_text
from dml_core.data.sources.split_words import read_roles, role_problems
from dml_core.data.sources.table_reading import Table, read_table


def list_table(config: FolderData, file: Path) -> SourceListing:
    """Returns the images of a table; paths are relative to the table's folder.

    Every column of finite numbers, but path, class and split, is a continuous label. Without a
    class column each image is a class of its own.

    Raises:
        DatasetError: with every problem of every row, the first ten of each kind spelled out.
    """
    table = read_table(file)
    root = file.parent.resolve()
    _check_columns(config, table)
    paths = _normalise(table.text(config.path_column), root)
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
        f"{key} names the column {column!r}, which is not there.{suggest(column, columns)}"
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


def _normalise(texts: Sequence[str], root: Path) -> list[str]:
    """Paths without `.` parts, relative to the root where they lie within it."""
    return [_normalise_one(text, root) for text in texts]


def _normalise_one(text: str, root: Path) -> str:
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
        for row, name in zip(table.row_numbers(), classes, strict=True)
        if config.class_column and not name.strip()
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
