"""Holds together what one preparation works on."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dml_core.config.data import DataBase
from dml_core.data.packing import PackingChoices, choices_of
from dml_core.data.parallel_map import map_in_order
from dml_core.data.prepared_info import effective_values
from dml_core.data.records import ImageRecord
from dml_core.data.splits import ClassSplit

_BYTES_PER_CHUNK = 16 * 2**20
_MAX_CHUNK = 64

Result = TypeVar("Result")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PreparationJob:
    """The images of a dataset, and how they are to be packed and split."""

    records: list[ImageRecord]
    """Sorted by path."""
    root: Path | None
    """Folder that no file may leave."""
    config: DataBase
    split: ClassSplit
    """Decided before any image was read."""
    workers: int
    """Processes that read images."""
    on_progress: Progress | None

    @property
    def choices(self) -> PackingChoices:
        """What decides the packed pixels."""
        return choices_of(self.config)

    @property
    def values(self) -> dict[str, Any]:
        """The configuration's values that have an effect on the data."""
        has_undecided = any(record.role == "undecided" for record in self.records)
        return effective_values(self.config, has_undecided=has_undecided)

    def run(
        self, function: Callable[[ImageRecord], Result], *, workers: int
    ) -> Generator[Result, None, None]:
        """Yields the function's result for each record in order, and reports the progress."""
        per_image = self.choices.channels * self.choices.image_size_px**2 * 3 // 2
        # Chunks travel between processes whole, so their size in bytes is what is bounded.
        chunk_size = max(1, min(_MAX_CHUNK, _BYTES_PER_CHUNK // per_image))
        results = map_in_order(function, self.records, workers=workers, chunk_size=chunk_size)
        with closing(results):
            for done, result in enumerate(results, start=1):
                yield result
                if self.on_progress is not None:
                    self.on_progress(done, len(self.records))
