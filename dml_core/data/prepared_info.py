"""The description of a prepared dataset: dataset.json with its hashes and values."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dml_core.config.data import DataBase
from dml_core.data.image_decoding import PackingChoices
from dml_core.data.records import DatasetError, ImageRecord

FORMAT_VERSION = 1
"""Incremented whenever the same input gives different files."""


def compute_source_hash(
    records: Sequence[ImageRecord], digests: Sequence[str], choices: PackingChoices
) -> str:
    """Returns the sha256 over the packing choices and the content of all records.

    Paths are the names in the records, so the location of files, their times and the number of
    workers have no effect.

    Args:
        records: sorted by path.
        digests: digest of each record's source, in the same order.
        choices: how the images are packed.
    """
    total = hashlib.sha256(_line({"format_version": FORMAT_VERSION, **asdict(choices)}))
    for record, digest in zip(records, digests, strict=True):
        labels = [[name, float(value).hex()] for name, value in sorted(record.continuous.items())]
        total.update(_line([record.path, record.class_name, record.role, labels, digest]))
    return total.hexdigest()


def compute_content_hash(source_hash: str, refused: Iterable[str]) -> str:
    """Returns the sha256 of the source hash and the refused images.

    Another version of the image library may refuse other images, which changes the content.
    """
    return hashlib.sha256(_line([source_hash, sorted(refused)])).hexdigest()


def hash_file(file: Path) -> str:
    """Returns the sha256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _line(value: Any) -> bytes:
    # Escaped to ASCII, because names with undecodable bytes cannot be encoded as UTF-8.
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


FILE_NAME = "dataset.json"

# Locations, the trial's selection, and the strictness of preparing: no effect on the data.
_VALUES_WITHOUT_EFFECT = frozenset(
    {"prepared_root", "raw", "alias", "fold", "on_bad_image", "max_refused_fraction", "on_leak"}
    | {"continuous_labels", "standardize_labels", "quantize_bins"}
)


@dataclass(frozen=True)
class PreparedInfo:
    """The content of dataset.json."""

    format_version: int
    name: str
    channels: int
    content_hash: str
    """Equal for equal input on every machine."""
    source_hash: str
    """Hash of the input, without the refused images."""
    split_hash: str
    num_development_images: int
    num_development_classes: int
    num_test_images: int
    num_test_classes: int
    num_refused: int
    single_image_classes: tuple[str, ...]
    """Classes with one image, which cannot be retrieved."""
    continuous_columns: tuple[str, ...]
    """Names of the continuous labels."""
    values: Mapping[str, Any]
    """The configured values that affect the data; on_leak only if images leaked."""
    files: Mapping[str, Mapping[str, Any]]
    """`size` in bytes and `sha256` of each file."""
    duplicates: Mapping[str, Any] = field(default_factory=dict)
    """Counts of equal images and near-duplicates from `duplicates.summarise`; empty for data of
    versions that did not count them."""

    def save(self, folder: Path) -> None:
        """Writes dataset.json into the folder."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def load_info(folder: Path) -> PreparedInfo:
    """Returns the content of dataset.json in a prepared folder; raises DatasetError if unusable."""
    file = folder / FILE_NAME
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetError(
            f"dataset {folder.name!r} is not prepared at {folder}. Run: dml prepare"
        ) from error
    except (OSError, ValueError) as error:
        raise DatasetError(f"{file} is damaged ({error}). Run: dml prepare") from error
    return _parse(file, values)


def effective_values(config: DataBase, *, has_undecided: bool) -> dict[str, Any]:
    """Returns the configured values that affect the prepared data.

    Args:
        config: the dataset's section.
        has_undecided: whether the configuration selects the test classes.
    """
    left_out = set(_VALUES_WITHOUT_EFFECT)
    if not has_undecided:
        left_out |= {"test_fraction", "test_selection"}
    if config.folds > 1:
        left_out.add("validation_fraction")
    dump = config.model_dump(mode="json")
    return {key: value for key, value in sorted(dump.items()) if key not in left_out}


def check_values_match(info: PreparedInfo, config: DataBase, folder: Path) -> None:
    """Raises DatasetError if the data were prepared with other values than configured."""
    now = {**config.model_dump(mode="json"), "on_leak": config.leak_rule}
    differences = [
        f"\n  - data.{key} was {value!r}, and is {now.get(key)!r} now"
        for key, value in sorted(info.values.items())
        if now.get(key) != value
    ]
    if differences:
        raise DatasetError(
            f"the data at {folder} were prepared with other values than configured:"
            f"{''.join(differences)}\nRun: dml prepare (which replaces them), or restore the "
            "previous values."
        )


def describe_files(folder: Path, digests: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Returns size and sha256 of each file below the folder.

    Args:
        folder: the prepared folder.
        digests: the sha256 of each file by its relative name; empty if not computed yet.
    """
    return {
        name: {"size": (folder / name).stat().st_size, "sha256": digest or hash_file(folder / name)}
        for name, digest in sorted(digests.items())
    }


def check_file_sizes(info: PreparedInfo, folder: Path, names: Iterable[str]) -> None:
    """Raises DatasetError if a file is missing or its size has changed."""
    for name in names:
        wanted = info.files.get(name, {}).get("size")
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found is None or found != wanted:
            state = "is missing" if found is None else f"has {found} bytes instead of {wanted}"
            raise DatasetError(f"{file} {state}, so the data cannot be used. Run: dml prepare")


def verify_files(folder: Path, *, names: Iterable[str] | None = None) -> None:
    """Verifies the sha256 of each file of a prepared folder.

    Args:
        folder: the prepared folder.
        names: files to verify; None verifies all.

    Raises:
        DatasetError: naming the first file that is missing or damaged.
    """
    info = load_info(folder)
    chosen = list(info.files if names is None else names)
    check_file_sizes(info, folder, chosen)
    for name in chosen:
        if hash_file(folder / name) != info.files[name]["sha256"]:
            raise DatasetError(
                f"{folder / name} is damaged: its sha256 has changed. Run: dml prepare"
            )


def _parse(file: Path, values: Any) -> PreparedInfo:
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise DatasetError(
            f"{file} must have format_version {FORMAT_VERSION}, which this version reads. "
            f"Got {version!r}. Run: dml prepare"
        )
    known = {each.name for each in fields(PreparedInfo)}
    needed = {each.name for each in fields(PreparedInfo) if each.default_factory is MISSING}
    if odd_names := (set(values) - known) | (needed - set(values)):
        odd = ", ".join(sorted(odd_names))
        raise DatasetError(f"{file} is damaged: missing or unknown entries {odd}. Run: dml prepare")
    for name in ("single_image_classes", "continuous_columns"):
        values[name] = tuple(values[name])
    return PreparedInfo(**values)
