"""Keeps a class split in splits.json."""

import json
from dataclasses import asdict
from pathlib import Path

from dml_core.data.records import DatasetError
from dml_core.data.splits import ClassSplit, check_split_is_disjoint

FILE_NAME = "splits.json"


def save_split(split: ClassSplit, folder: Path) -> None:
    """Writes splits.json into the folder."""
    text = json.dumps(asdict(split), indent=1, sort_keys=True, ensure_ascii=False)
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def load_split(folder: Path, *, split_hash: str) -> ClassSplit:
    """Returns the split in a prepared folder.

    Raises:
        DatasetError: if the file is missing, damaged, was changed since it was written, or
            lets a class have two uses.
    """
    file = folder / FILE_NAME
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        development, test = tuple(values["development"]), tuple(values["test"])
        split = ClassSplit(development, test, tuple(tuple(fold) for fold in values["folds"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{file} is missing or damaged ({error!r}). Run: dml prepare") from error
    check_split_is_disjoint(split)
    if split.hash() != split_hash:
        raise DatasetError(
            f"{file} was changed after it was written: its hash is {split.hash()}, and "
            f"dataset.json says {split_hash}. Run: dml prepare"
        )
    return split
