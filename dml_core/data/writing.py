"""Writes a prepared dataset into an empty folder, with a list of refused images."""

import csv
import functools
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml_core.config.data import DataBase
from dml_core.data import prepared_info
from dml_core.data import splits as split_file
from dml_core.data.duplicates import (
    ACROSS_SPLITS,
    Copy,
    DuplicateSearch,
    FoundImage,
    check_no_leaks,
    find_similar_names,
    leaks_file,
    name_places,
    summarise,
    write_copies,
)
from dml_core.data.image_decoding import PackingChoices
from dml_core.data.packing import choices_of, pack_record
from dml_core.data.parallel import map_in_order
from dml_core.data.prepared_info import (
    FORMAT_VERSION,
    PreparedInfo,
    compute_content_hash,
    compute_source_hash,
    effective_values,
)
from dml_core.data.records import DatasetError, ImageRecord
from dml_core.data.splits import ClassSplit, check_split_has_enough_classes, side_of
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
        """Records a refused image; raises DatasetError if the configuration says to stop."""
        if self._config.on_bad_image == "fail":
            raise DatasetError(
                f"image {record.path!r} {reason}. Preparing stops because of "
                "data.on_bad_image=fail; fix or remove the image, or set the key to refuse."
            )
        self.rows.append((record.path, reason))
        if is_too_many(len(self.rows), self._total, self._config):
            raise DatasetError(self._describe_too_many())

    def write(self, file: Path) -> None:
        """Writes refused.csv without cells that a spreadsheet would run as formulas."""
        with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            # All cells are quoted, because the writer does not quote a lone carriage return.
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
            f"Fix it, or raise data.max_refused_fraction. The first:{first}"
        )


def is_too_many(refused: int, total: int, config: DataBase) -> bool:
    """Returns whether more images were refused than data.max_refused_fraction allows."""
    return refused > config.max_refused_fraction * total


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


IMAGES_FILE = "images.bin"
MANIFEST_FILE = "manifest.parquet"
CONTINUOUS_PREFIX = "continuous."
"""Prefix of continuous columns, so that one called `height` does not collide."""

_SCHEMA = [
    ("path", pa.string()),
    ("class_name", pa.string()),
    ("label", pa.int64()),
    ("role", pa.string()),
    ("offset", pa.int64()),
    ("height", pa.int64()),
    ("width", pa.int64()),
]


class PartWriter:
    """Appends images to images.bin and writes manifest.parquet at the end."""

    def __init__(self, folder: Path, continuous_columns: Sequence[str]) -> None:
        folder.mkdir()
        self._folder = folder
        self._continuous_columns = list(continuous_columns)
        self._begin()

    def _begin(self) -> None:
        self._stream = (self._folder / IMAGES_FILE).open("w+b")
        self._digest = hashlib.sha256()
        self._offset = 0
        self._rows: list[dict[str, Any]] = []
        self.class_counts: Counter[str] = Counter()
        """Images of each class so far."""

    def add(self, record: ImageRecord, role: str, pixels: np.ndarray) -> int:
        """Appends one image and returns its number.

        Args:
            record: the image's record.
            role: train, test, query or gallery.
            pixels: (H, W, C) uint8.
        """
        row = {"path": record.path, "class_name": record.class_name, "role": role}
        size = {"height": pixels.shape[0], "width": pixels.shape[1]}
        continuous = {CONTINUOUS_PREFIX + k: float(v) for k, v in record.continuous.items()}
        self._append({**row, **size, **continuous}, np.ascontiguousarray(pixels).tobytes())
        return len(self._rows) - 1

    def _append(self, row: dict[str, Any], content: bytes) -> None:
        self._stream.write(content)
        self._digest.update(content)
        self._rows.append({**row, "offset": self._offset})
        self._offset += len(content)
        self.class_counts[row["class_name"]] += 1

    def read(self, number: int) -> bytes:
        """Returns the bytes of an added image."""
        self._stream.flush()
        start = self._rows[number]["offset"]
        is_last = number + 1 == len(self._rows)
        end = self._offset if is_last else self._rows[number + 1]["offset"]
        return os.pread(self._stream.fileno(), end - start, start)

    def remove(self, paths: Collection[str]) -> None:
        """Removes images; the others keep their order and are renumbered."""
        former, rows, end = self._stream, self._rows, self._offset
        former.flush()
        ends = [*(row["offset"] for row in rows[1:]), end]
        # The open file remains readable after unlink, so the kept images are read from it.
        (self._folder / IMAGES_FILE).unlink()
        self._begin()
        with former:
            for row, stop in zip(rows, ends, strict=True):
                if row["path"] not in paths:
                    start = row["offset"]
                    self._append(row, os.pread(former.fileno(), stop - start, start))

    def finish(self) -> dict[str, str]:
        """Writes the manifest; returns the sha256 of each file, empty if not computed yet."""
        self.close()
        labels = {name: label for label, name in enumerate(sorted(self.class_counts))}
        for row in self._rows:
            row["label"] = labels[row["class_name"]]
        columns = [(CONTINUOUS_PREFIX + name, pa.float64()) for name in self._continuous_columns]
        table = pa.Table.from_pylist(self._rows, schema=pa.schema(_SCHEMA + columns))
        pq.write_table(table, self._folder / MANIFEST_FILE)
        part = self._folder.name
        return {
            f"{part}/{IMAGES_FILE}": self._digest.hexdigest(),
            f"{part}/{MANIFEST_FILE}": "",
        }

    def close(self) -> None:
        """Closes images.bin; safe to call twice."""
        self._stream.close()


_BYTES_PER_CHUNK = 16 * 2**20
_MAX_CHUNK = 64

Result = TypeVar("Result")
Progress = Callable[[int, int], None]


class MapRecords(Protocol):
    """A map over records with results in order, such as `map_in_order`."""

    def __call__(
        self,
        function: Callable[[ImageRecord], Result],
        records: Sequence[ImageRecord],
        /,
        *,
        workers: int,
        chunk_size: int,
    ) -> Generator[Result, None, None]:
        """Yields function(record) for each record."""


@dataclass(frozen=True)
class PreparationJob:
    """The images of a dataset, and how to pack and split them."""

    records: list[ImageRecord]
    """Sorted by path."""
    root: Path | None
    """Folder that must contain all files."""
    config: DataBase
    split: ClassSplit
    """Made before any image is read."""
    workers: int
    """Processes that read images."""
    on_progress: Progress | None
    map_files: MapRecords | None = None
    """Reads files, perhaps on other machines; None uses processes of this one."""

    @property
    def choices(self) -> PackingChoices:
        """The values that determine the packed pixels."""
        return choices_of(self.config)

    @property
    def values(self) -> dict[str, Any]:
        """The configured values that affect the data."""
        has_undecided = any(record.role == "undecided" for record in self.records)
        return effective_values(self.config, has_undecided=has_undecided)

    def run(
        self,
        function: Callable[[ImageRecord], Result],
        *,
        workers: int,
        map_records: MapRecords | None = None,
    ) -> Generator[Result, None, None]:
        """Yields function(record) for each record in order, and reports progress."""
        per_image = self.choices.channels * self.choices.image_size_px**2 * 3 // 2
        # Chunks are pickled between processes, so their size in bytes is bounded.
        chunk_size = max(1, min(_MAX_CHUNK, _BYTES_PER_CHUNK // per_image))
        mapped = map_records or map_in_order
        results = mapped(function, self.records, workers=workers, chunk_size=chunk_size)
        with closing(results):
            for done, result in enumerate(results, start=1):
                yield result
                if self.on_progress is not None:
                    self.on_progress(done, len(self.records))


REFUSED_FILE = "refused.csv"
DUPLICATES_FILE = "duplicates.csv"
DEVELOPMENT = "development"
TEST = "test"


def write_dataset(folder: Path, job: PreparationJob) -> PreparedInfo:
    """Packs all images into the folder and writes its description.

    Raises:
        DatasetError: as configured for bad images and for images in two splits, and if too few
            classes are left.
    """
    refusals = Refusals(job.config, total=len(job.records))
    columns = sorted(job.records[0].continuous)
    with (
        closing(PartWriter(folder / DEVELOPMENT, columns)) as development,
        closing(PartWriter(folder / TEST, columns)) as test,
    ):
        search = DuplicateSearch(job.split)
        digests = _pack_all(job, development, test, refusals, search)
        equal = search.find_equal()
        dropped = _handle_leaks(job, equal, development)
        file_digests = {**development.finish(), **test.finish()}
    split = job.split.restricted_to({*development.class_counts, *test.class_counts})
    check_split_has_enough_classes(split, job.config)
    split_file.save_split(split, folder)
    refusals.write(folder / REFUSED_FILE)
    alike = search.find_alike(without=[copy.path for copy in equal])
    listed, counts = alike or ([], None)
    write_copies([*equal, *listed], folder / DUPLICATES_FILE)
    duplicates = summarise(
        equal,
        counts,
        num_dropped=len(dropped),
        similar_names=find_similar_names(name_places(split)),
    )
    file_digests |= {REFUSED_FILE: "", DUPLICATES_FILE: "", split_file.FILE_NAME: ""}
    files = prepared_info.describe_files(folder, file_digests)
    source_hash = compute_source_hash(job.records, digests, job.choices)
    hashes = source_hash, compute_content_hash(source_hash, [*refusals.paths, *dropped])
    num_refused = len(refusals.paths)
    info = _describe(job, (development, test), split, hashes, num_refused, files, duplicates)
    info.save(folder)
    return info


def _pack_all(
    job: PreparationJob,
    development: PartWriter,
    test: PartWriter,
    refusals: Refusals,
    search: DuplicateSearch,
) -> list[str]:
    """Writes both parts; returns the digest of each record's source."""
    test_classes = set(job.split.test)
    pack = functools.partial(pack_record, root=job.root, choices=job.choices)
    digests = []
    with closing(job.run(pack, workers=job.workers, map_records=job.map_files)) as results:
        for record, packed in zip(job.records, results, strict=True):
            digests.append(packed.digest)
            is_test = record.class_name in test_classes
            if packed.pixels is None or packed.fingerprint is None:
                refusals.add(record, packed.reason)
                continue
            part = test if is_test else development
            number = part.add(record, _final_role(record, is_test=is_test), packed.pixels)
            search.add(
                FoundImage(record.path, record.class_name, packed.digest, content=""),
                shape=packed.pixels.shape,
                fingerprint=packed.fingerprint,
                read=functools.partial(part.read, number),
            )
    return digests


def _handle_leaks(job: PreparationJob, equal: Sequence[Copy], development: PartWriter) -> list[str]:
    """Refuses, drops or keeps images in two splits; returns the paths of dropped images."""
    if job.config.leak_rule == "fail":
        check_no_leaks(equal, job.config)
    leaks_file(job.config).unlink(missing_ok=True)
    if job.config.leak_rule != "drop":
        return []
    # The first of equal images is the test image, so no test image is dropped.
    dropped = [copy.path for copy in equal if copy.relation == ACROSS_SPLITS]
    if dropped:
        development.remove(set(dropped))
    return dropped


def _final_role(record: ImageRecord, *, is_test: bool) -> str:
    if side_of(record.role) == "undecided":
        return "test" if is_test else "train"
    return record.role


def _describe(
    job: PreparationJob,
    parts: tuple[PartWriter, PartWriter],
    split: ClassSplit,
    hashes: tuple[str, str],
    num_refused: int,
    files: Mapping[str, Mapping[str, int | str]],
    duplicates: Mapping[str, Any],
) -> PreparedInfo:
    development, test = (part.class_counts for part in parts)
    source_hash, content_hash = hashes
    has_leaks = bool(duplicates["equal"][ACROSS_SPLITS])
    single = sorted(name for name, count in (development + test).items() if count == 1)
    return PreparedInfo(
        format_version=FORMAT_VERSION,
        name=job.config.folder_name,
        channels=job.choices.channels,
        content_hash=content_hash,
        source_hash=source_hash,
        split_hash=split.hash(),
        num_development_images=development.total(),
        num_development_classes=len(development),
        num_test_images=test.total(),
        num_test_classes=len(test),
        num_refused=num_refused,
        single_image_classes=tuple(single),
        continuous_columns=tuple(sorted(job.records[0].continuous)),
        values={**job.values, **({"on_leak": job.config.leak_rule} if has_leaks else {})},
        files=files,
        duplicates=duplicates,
    )
