"""Guesses the columns of a table of images, by their names and by their content."""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_core.data.records import DatasetError, missing_files, shorten_text

if TYPE_CHECKING:
    from dml_core.data.sources.tables import Table

PATH_WORDS = ("path", "file", "filename", "filepath", "image", "img", "photo", "picture")
CLASS_WORDS = (
    *("class", "label", "category", "species", "product", "item", "identity", "person"),
    *("target", "breed", "model", "id"),
)
"""Words in the name of a class column, in order of preference."""
MAX_NUMBERED_CLASSES = 50
"""Above it, whole numbers in a column without a class word are measurements, not classes."""
MIN_MEASURED = 10
"""A column of numbers with fewer distinct values is no continuous label."""
_SPLIT_WORDS = frozenset({"train", "test", "query", "gallery"})
VALIDATION_WORDS = frozenset({"val", "valid", "validation", "dev"})
_SAMPLE_ROWS = 200
_SHOWN_COLUMNS = 8
_IMAGE_NAME = re.compile(r"\.(jpe?g|png|webp|gif|bmp|tiff?|p[bgp]m|heic|heif|avif)$", re.IGNORECASE)


@dataclass(frozen=True)
class GuessedColumns:
    """The keys that read a table, and the lines that show why."""

    keys: dict[str, Any]
    lines: tuple[str, ...]


def guess_columns(file: Path) -> GuessedColumns:
    """Returns the columns with paths, classes or continuous labels, and splits.

    Raises:
        DatasetError: if no column has paths of existing files, or none has classes or numbers.
    """
    from dml_core.data.sources.tables import read_table

    table = read_table(file)
    columns = [str(name) for name in table.frame.columns]
    if not len(table.frame):
        raise DatasetError(f"{file} must have rows below its header. Found none.")
    texts = {name: table.text(name) for name in columns}
    path = _find_path_column(file, texts)
    split = next((name for name in columns if name != path and _is_split(texts[name])), "")
    others = [name for name in columns if name not in (path, split)]
    label = _find_class_column(table, others, texts)
    continuous = [] if label else [name for name in others if _is_measured(table, name)]
    if not label and not continuous:
        # A class column that cannot be used gives a clearer error later than none.
        label = max(others, key=lambda name: rank_name(name, CLASS_WORDS), default="")
        if not label or not rank_name(label, CLASS_WORDS):
            raise DatasetError(
                f"{file} must have a column with classes, or columns with numbers. Found neither "
                f"beside the paths in {path!r}: {_list(others)}. Add a column named class."
            )
    keys: dict[str, Any] = {"data.path_column": path, "data.class_column": label}
    shown = [f"path {path!r}"]
    if label:
        shown.append(f"class {label!r}")
    else:
        keys["data.continuous_labels"] = continuous
        shown.append("continuous labels " + ", ".join(map(repr, continuous)))
    used, note = _use_split(table, split, keys, label or path)
    if used:
        keys["data.split_column"] = used
        shown.append(f"split {used!r}")
    return GuessedColumns(keys, tuple([f"{', '.join(shown)} (guessed)", *note]))


def _find_path_column(file: Path, texts: dict[str, list[str]]) -> str:
    shares = {name: _existing_share(file.parent, values) for name, values in texts.items()}
    best = max(texts, key=lambda name: (shares[name], rank_name(name, PATH_WORDS)), default="")
    if best and shares[best] > 0:
        return best
    named = [name for name in texts if any(map(_IMAGE_NAME.search, texts[name][:_SAMPLE_ROWS]))]
    if not named:
        raise DatasetError(
            f"{file} must have a column with the paths of images. Found none among its columns "
            f"{_list(list(texts))}. Add one, with paths relative to {file.parent}."
        )
    values = texts[named[0]]
    first = next(text for text in values if text.strip())
    raise DatasetError(
        f"{file}: column {named[0]!r} must hold paths of files relative to {file.parent}. None of "
        f"the {len(values):,} exists there; the first is {shorten_text(first)}."
        f"{_hint(file.parent, first)}"
    )


def _hint(folder: Path, first: str) -> str:
    """Returns where the first path would exist, if it is in a folder beside the table."""
    name = os.path.basename(first.replace("\\", "/"))
    with os.scandir(folder) as entries:
        places = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for place in places:
        if name and (folder / place / name).is_file():
            return f" There is {place}/{name}: write the paths so."
    return " Copy the images beside the table, or rewrite the column."


def _existing_share(folder: Path, values: Sequence[str]) -> float:
    sample = values[:: max(1, len(values) // _SAMPLE_ROWS)][:_SAMPLE_ROWS]
    usable = [text for text in sample if text.strip() and "\0" not in text]
    if not usable:
        return 0.0
    try:
        missing = missing_files([folder / text for text in usable])
    except OSError:
        return 0.0
    return 1 - len(missing) / len(sample)


def rank_name(name: str, words: Sequence[str]) -> int:
    """Returns a higher number for an earlier word in the name; 0 for none."""
    parts = set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))
    parts |= {part.removesuffix("s") for part in parts}
    return next((len(words) - i for i, word in enumerate(words) if word in parts), 0)


def _is_split(values: Sequence[str]) -> bool:
    words = {text.strip().lower() for text in values}
    return "train" in words and len(words) > 1 and words <= _SPLIT_WORDS | VALIDATION_WORDS


def _use_split(
    table: "Table", split: str, keys: dict[str, Any], classes: str
) -> tuple[str, list[str]]:
    """Returns the split column if the reader can use it, or the reason why not."""
    from dml_core.config.data import FolderData
    from dml_core.data.sources.tables import read_roles, role_problems

    if not split:
        return "", []
    words = {text.strip().lower() for text in table.text(split)}
    if words & VALIDATION_WORDS:
        found = ", ".join(sorted(words & VALIDATION_WORDS))
        return "", [
            f"column {split!r} is not used, because it has {found}: validation classes are taken "
            "from train. To use it, write train there"
        ]
    fields = {key.removeprefix("data."): value for key, value in keys.items()}
    config = FolderData(**{**fields, "split_column": split})
    problems = role_problems(config, table, read_roles(table.text(split)), table.text(classes))
    if problems:
        more = f" ({len(problems):,} such)" if len(problems) > 1 else ""
        return "", [f"column {split!r} is not used: {problems[0].rstrip('.')}{more}"]
    return split, []


def _find_class_column(table: "Table", columns: list[str], texts: dict[str, list[str]]) -> str:
    usable = [name for name in columns if _may_be_class(table, name, texts[name])]
    named = [name for name in usable if rank_name(name, CLASS_WORDS)]
    if named:
        return max(named, key=lambda name: rank_name(name, CLASS_WORDS))
    by_content = [name for name in usable if _has_few_values(table, name, texts[name])]
    # The finest of several: it has the most to tell apart.
    return max(by_content, key=lambda name: len(set(texts[name])), default="")


def _may_be_class(table: "Table", name: str, values: Sequence[str]) -> bool:
    distinct = set(values)
    if not 1 < len(distinct) < len(values) or "" in distinct:
        return False
    numbers = table.numbers(name)
    return any(map(math.isnan, numbers)) or all(map(_is_whole, numbers))


def _is_whole(number: float) -> bool:
    return math.isfinite(number) and number == int(number)


def _has_few_values(table: "Table", name: str, values: Sequence[str]) -> bool:
    distinct = set(values)
    is_number = all(map(math.isfinite, table.numbers(name)))
    return len(distinct) <= (MAX_NUMBERED_CLASSES if is_number else len(values) // 2)


def _is_measured(table: "Table", name: str) -> bool:
    numbers = table.numbers(name)
    if not all(map(math.isfinite, numbers)) or len(set(numbers)) < MIN_MEASURED:
        return False
    # Whole numbers that are all different and without gaps number the rows.
    counts = all(map(_is_whole, numbers)) and len(set(numbers)) == len(numbers)
    return not (counts and max(numbers) - min(numbers) == len(numbers) - 1)


def _list(columns: Sequence[str]) -> str:
    shown = ", ".join(map(shorten_text, columns[:_SHOWN_COLUMNS])) or "none"
    return shown + (", ..." if len(columns) > _SHOWN_COLUMNS else "")
