"""Describes a prepared dataset: its content, its hashes, and the values it was made from."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dml_core.config.data import DataBase
from dml_core.data.packing import PackingChoices
from dml_core.data.records import DatasetError, ImageRecord

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


FILE_NAME = "dataset.json"

# Not of the data: where things lie, what a trial takes of them, and how strict preparing is.
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
    """As content_hash, before it was known which images are refused."""
    split_hash: str
    num_development_images: int
    num_development_classes: int
    num_test_images: int
    num_test_classes: int
    num_refused: int
    single_image_classes: tuple[str, ...]
    """Classes with one image left: no query of theirs has anything to find."""
    continuous_columns: tuple[str, ...]
    """Names of the continuous labels."""
    values: Mapping[str, Any]
    """The configuration's values that had an effect on the data; on_leak where images leaked."""
    files: Mapping[str, Mapping[str, Any]]
    """For each file its `size` in bytes and its `sha256`."""
    duplicates: Mapping[str, Any] = field(default_factory=dict)
    """Counts of equal images and of such that look alike, as `duplicates.summarise` returns them;
    empty where the data were made before these were counted."""

    def save(self, folder: Path) -> None:
        """Writes dataset.json into the folder."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def load_info(folder: Path) -> PreparedInfo:
    """Returns what dataset.json in a prepared folder says; a DatasetError if it is not usable."""
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
    """Returns the configuration's values that have an effect on the prepared data.

    Args:
        config: the dataset's section.
        has_undecided: whether the dataset leaves the test classes to the configuration.
    """
    left_out = set(_VALUES_WITHOUT_EFFECT)
    if not has_undecided:
        left_out |= {"test_fraction", "test_selection"}
    if config.folds > 1:
        left_out.add("validation_fraction")
    dump = config.model_dump(mode="json")
    return {key: value for key, value in sorted(dump.items()) if key not in left_out}


def check_values_match(info: PreparedInfo, config: DataBase, folder: Path) -> None:
    """Raises DatasetError where the data were prepared with other values than are set now."""
    now = {**config.model_dump(mode="json"), "on_leak": config.leak_rule}
    differences = [
        f"\n  - data.{key} was {value!r}, and is {now.get(key)!r} now"
        for key, value in sorted(info.values.items())
        if now.get(key) != value
    ]
    if differences:
        raise DatasetError(
            f"the data at {folder} were prepared with other values than the configuration has:"
            f"{''.join(differences)}\nRun: dml prepare (which replaces them), or set the former "
            "values again."
        )


def describe_files(folder: Path, digests: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Returns size and sha256 of each file below the folder.

    Args:
        folder: the prepared folder.
        digests: the sha256 of each file by its relative name, empty where yet to be computed.
    """
    return {
        name: {"size": (folder / name).stat().st_size, "sha256": digest or hash_file(folder / name)}
        for name, digest in sorted(digests.items())
    }


def check_file_sizes(info: PreparedInfo, folder: Path, names: Iterable[str]) -> None:
    """Raises DatasetError where a file is missing or has another size than it was written with."""
    for name in names:
        wanted = info.files.get(name, {}).get("size")
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found is None or found != wanted:
            state = "is missing" if found is None else f"has {found} bytes instead of {wanted}"
            raise DatasetError(f"{file} {state}, so the data cannot be used. Run: dml prepare")


def verify_files(folder: Path, *, names: Iterable[str] | None = None) -> None:
    """Compares each file of a prepared folder with the sha256 that it was written with.

    Args:
        folder: the prepared folder.
        names: look only at these of its files; None takes all.

    Raises:
        DatasetError: naming the first file that is missing or damaged.
    """
    info = load_info(folder)
    chosen = list(info.files if names is None else names)
    check_file_sizes(info, folder, chosen)
    for name in chosen:
        if hash_file(folder / name) != info.files[name]["sha256"]:
            raise DatasetError(
                f"{folder / name} is damaged: its sha256 is not the one it was written with. "
                "Run: dml prepare"
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
