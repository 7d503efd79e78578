"""Keeps account of images that cannot be used, and decides when there are too many."""

import csv
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data.records import DatasetError, ImageRecord
from dml_core.data.spreadsheet_cells import protect_cell

_SHOWN = 5


class Refusals:
    """The refused images of one preparation."""

    def __init__(self, config: DataBase, *, total: int) -> None:
        self._config = config
        self._total = total
        self.rows: list[tuple[str, str]] = []
        """(path, reason) of each refused image, in order of path."""

    @property
    def paths(self) -> list[str]:
        """Paths of the refused images."""
        return [path for path, _ in self.rows]

    def add(self, record: ImageRecord, reason: str) -> None:
        """Notes a refused image; raises DatasetError where the configuration says to stop."""
        if self._config.on_bad_image == "fail":
            raise DatasetError(
                f"image {record.path!r} {reason}. Preparing stops here because of "
                "data.on_bad_image=fail; mend or remove the image, or set it to refuse."
            )
        self.rows.append((record.path, reason))
        if is_too_many(len(self.rows), self._total, self._config):
            raise DatasetError(self._describe_too_many())

    def write(self, file: Path) -> None:
        """Writes refused.csv, in which no cell starts a formula when a spreadsheet opens it."""
        with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            # All cells are quoted, since the writer leaves a lone carriage return bare.
            writer = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
            writer.writerow(("path", "reason"))
            writer.writerows((protect_cell(path), protect_cell(why)) for path, why in self.rows)

    def _describe_too_many(self) -> str:
        number, limit = len(self.rows), self._config.max_refused_fraction
        first = "".join(f"\n  - {_printable(path)} {why}" for path, why in self.rows[:_SHOWN])
        return (
            f"dataset {self._config.folder_name!r}: {number} of {self._total} images "
            f"({number / self._total:.2%}) were refused so far, more than "
            f"data.max_refused_fraction={limit:g} allows, so the download is probably damaged. "
            f"Mend it, or raise data.max_refused_fraction. The first:{first}"
        )


def is_too_many(refused: int, total: int, config: DataBase) -> bool:
    """Tells whether a larger share of the images was refused than the configuration allows."""
    return refused > config.max_refused_fraction * total


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
