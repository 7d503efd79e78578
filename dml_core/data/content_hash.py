"""Hashes what a dataset is made of, equal for equal input on every machine."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_core.data.packing import PackingChoices
from dml_core.data.records import ImageRecord

FORMAT_VERSION = 1
"""Raised whenever the same input would be packed into other files."""


def compute_source_hash(
    records: Sequence[ImageRecord], digests: Sequence[str], choices: PackingChoices
) -> str:
    """Returns the sha256 over the packing choices and, record by record, all that was given.

    Paths are the records' own names, so neither where the files lie, nor their times, nor the
    number of workers play a part.

    Args:
        records: sorted by path.
        digests: of each record's source, in the same order.
        choices: how the images are packed.
    """
    total = hashlib.sha256(_line({"format_version": FORMAT_VERSION, **asdict(choices)}))
    for record, digest in zip(records, digests, strict=True):
        labels = [[name, float(value).hex()] for name, value in sorted(record.continuous.items())]
        total.update(_line([record.path, record.class_name, record.role, labels, digest]))
    return total.hexdigest()


def compute_content_hash(source_hash: str, refused: Iterable[str]) -> str:
    """Returns the sha256 of the source together with which of its images were refused.

    Another version of the image library may refuse other images, and then the content differs.
    """
    return hashlib.sha256(_line([source_hash, sorted(refused)])).hexdigest()


def hash_file(file: Path) -> str:
    """Returns the sha256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _line(value: Any) -> bytes:
    # Escaped to ASCII, since names with undecodable bytes cannot be written as UTF-8.
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
