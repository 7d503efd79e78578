"""Reads a CSV or Parquet table as text, so that nothing in it changes its meaning."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dml_core.data.records import DatasetError


@dataclass(frozen=True)
class Table:
    """A user's table, whose rows keep the numbers by which the user knows them."""

    file: Path
    frame: pd.DataFrame
    """One column a field; CSV fields are text, Parquet fields keep their type."""

    def row_numbers(self) -> list[int]:
        """Returns each row's number: as spreadsheets show it for a CSV (header 1), from 1 else."""
        return [int(index) + 1 for index in self.frame.index]

    def text(self, column: str) -> list[str]:
        """Returns a column as text, word for word; a missing value is an empty text."""
        values = self.frame[column].astype(object)
        return ["" if _is_missing(value) else str(value) for value in values]

    def numbers(self, column: str) -> list[float]:
        """Returns a column as numbers; NaN where a value is none."""
        return [_to_number(value) for value in self.frame[column].astype(object)]


def read_table(file: Path) -> Table:
    """Returns the table in a .csv or .parquet file.

    Raises:
        DatasetError: if it cannot be read, has columns of the same name, or another suffix.
    """
    suffix = file.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise DatasetError(f"data.table must end in .csv or .parquet. Got {file.name!r}.")
    table = _read_csv(file) if suffix == ".csv" else _read_parquet(file)
    names = [str(name) for name in table.frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DatasetError(
            f"{file} must have columns of different names, or it is unclear which is meant. "
            f"Found twice: {', '.join(repeated)}. Rename one."
        )
    return table


def _is_missing(value: Any) -> bool:
    return pd.api.types.is_scalar(value) and bool(pd.isna(value))


def _to_number(value: Any) -> float:
    # Python's own float, because it reads text exactly; but True and 1_000 are no measurements,
    # and neither is a list of one number, which a Parquet cell may hold.
    if isinstance(value, bool | np.bool_ | np.ndarray) or "_" in str(value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _read_csv(file: Path) -> Table:
    try:
        # Without a header row for pandas, because it renames repeated columns silently.
        # Without its NA words, because "NA", "null" and "nan" are fine names of classes.
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
        raise DatasetError(f"{file} must have a header row, found nothing. Fill it.") from error
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{file} must be UTF-8 text. Got other bytes at position {error.start:,}. "
            "Save it as CSV with encoding UTF-8."
        ) from error
    except (pd.errors.ParserError, OSError) as error:
        raise DatasetError(
            f"{file} must be a CSV with as many fields in each row as in the first. {error}. "
            "Put fields that hold a comma between double quotes."
        ) from error
    header = [str(name).strip() for name in frame.iloc[0]]
    body = frame.iloc[1:].set_axis(header, axis="columns")
    # Spreadsheets leave empty columns behind, and pandas writes its index under an empty name.
    body = body.loc[:, [name != "" for name in header]]
    # Blank lines are dropped after numbering, so that row numbers stay those of the file.
    return Table(file=file, frame=body[(body != "").any(axis="columns")])


def _read_parquet(file: Path) -> Table:
    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{file} must be a Parquet file. It cannot be read: {error}. Write it again."
        ) from error
    # An index with a name is a column that pandas put aside; one without a name only counts.
    frame = frame.reset_index(drop=None in frame.index.names)
    return Table(file=file, frame=frame.set_axis([str(name) for name in frame], axis="columns"))
