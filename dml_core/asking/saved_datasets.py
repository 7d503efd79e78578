"""Reads Hugging Face datasets: saved to disk, as Parquet files, or by name from the hub."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dml_core.asking.converting import Sample, write_class_archive
from dml_core.asking.tables import CLASS_WORDS, rank_name
from dml_core.data.records import DatasetError

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_BATCH_ROWS = 64


def read_saved(folder: Path) -> Iterator[Sample]:
    """Yields the samples of a folder that `save_to_disk` wrote; all splits together."""
    import pyarrow as pa

    for file in _arrow_files(folder):
        try:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
                yield from _read_batches(reader.schema, reader, file)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{file} is damaged: {_first_line(error)}.") from error


def read_parquet(files: Sequence[Path]) -> Iterator[Sample]:
    """Yields the samples of Parquet files that hold images themselves."""
    import pyarrow.parquet as pq

    for file in files:
        schema = read_parquet_schema(file)
        with pq.ParquetFile(file) as source:
            yield from _read_batches(schema, source.iter_batches(_BATCH_ROWS), file)


def read_parquet_schema(file: Path) -> Any:
    """Returns the schema of a Parquet file.

    Raises:
        DatasetError: if it is no Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{file} must be a Parquet file: {_first_line(error)}.") from error


def find_picture_column(schema: Any) -> str | None:
    """Returns the first column with images: by its feature, or with a field of bytes."""
    import pyarrow as pa

    features = _features(schema)
    for column in schema:
        if features.get(column.name, {}).get("_type") == "Image":
            return str(column.name)
    for column in schema:
        is_struct = pa.types.is_struct(column.type)
        if is_struct and column.type.get_field_index("bytes") >= 0:
            return str(column.name)
    return None


def has_picture_column(file: Path) -> bool:
    """Returns whether a Parquet file holds images themselves, not their paths."""
    return find_picture_column(read_parquet_schema(file)) is not None


def find_label_column(schema: Any) -> tuple[str, list[str]] | None:
    """Returns the column with classes, and the names of its classes if it holds numbers."""
    import pyarrow as pa

    features = _features(schema)
    coded = {
        name: list(map(str, feature.get("names") or []))
        for name, feature in features.items()
        if feature.get("_type") == "ClassLabel" and name in schema.names
    }
    if coded:
        # The finest of several, such as fine and coarse labels.
        finest = max(coded, key=lambda name: len(coded[name]))
        return finest, coded[finest]
    usable = [
        column.name
        for column in schema
        if pa.types.is_integer(column.type)
        or pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
    ]
    named = [name for name in usable if rank_name(name, CLASS_WORDS)]
    best = max(named, key=lambda name: rank_name(name, CLASS_WORDS), default=None)
    return None if best is None else (best, [])


def convert_hub_dataset(
    name: str, target: Path, on_progress: Callable[[str], None]
) -> tuple[str, ...]:
    """Downloads a dataset of the Hugging Face hub, and writes it to one tar of class folders.

    Raises:
        DatasetError: for a malformed name, without the package `datasets`, and without the hub.
    """
    if not _HUB_NAME.fullmatch(name):
        raise DatasetError(f"a dataset of the hub is hf:owner/name. Got {f'hf:{name}'!r}.")
    on_progress(f"downloading {name} from the Hugging Face hub")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, because the folder for temporary files may be small.
    folder = Path(tempfile.mkdtemp(prefix=".hub-", dir=target.parent))
    try:
        _download(name, folder / "saved")
        what = f"hf:{name}"
        samples = read_saved(folder / "saved")
        return write_class_archive(samples, target, what=what, on_progress=on_progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(name: str, folder: Path) -> None:
    elsewhere = (
        'On a machine that has both, run: python -c "import datasets; datasets.load_dataset('
        f"'{name}').save_to_disk('FOLDER')\", and give the path of FOLDER instead"
    )
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise DatasetError(
            f"hf:{name} needs the package datasets, which is not installed. Run: pip install "
            f"datasets. {elsewhere}."
        ) from error
    try:
        datasets.load_dataset(name).save_to_disk(str(folder))
    except Exception as error:
        # The package raises errors of several HTTP libraries.
        raise DatasetError(
            f"hf:{name} cannot be loaded from the hub ({type(error).__name__}: "
            f"{_first_line(error)}). Check the name and the network. {elsewhere}."
        ) from error


def _arrow_files(folder: Path) -> list[Path]:
    listing = folder / "dataset_dict.json"
    if listing.exists():
        splits = [str(name) for name in _read_json(listing).get("splits", [])]
        files = [file for name in splits for file in _arrow_files(_inside(folder, name))]
    else:
        state = _read_json(folder / "state.json") if (folder / "state.json").exists() else {}
        names = [str(entry["filename"]) for entry in state.get("_data_files") or []]
        files = [_inside(folder, name) for name in names] or sorted(folder.glob("*.arrow"))
    if not files:
        raise DatasetError(f"{folder} must hold *.arrow files. Found none. Save the dataset again.")
    return files


def _inside(folder: Path, name: str) -> Path:
    # A shared dataset must not read other files of the machine.
    if Path(name).name != name or name in (".", ".."):
        raise DatasetError(f"{folder} must name files inside it. Found {name!r}.")
    return folder / name


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return {**values}
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(
            f"{file} is missing or damaged ({_first_line(error)}). Save the dataset again."
        ) from error


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {name: value for name, value in features.items() if isinstance(value, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _read_batches(schema: Any, batches: Iterable[Any], file: Path) -> Iterator[Sample]:
    picture, label = find_picture_column(schema), find_label_column(schema)
    columns = ", ".join(map(str, schema.names))
    if picture is None:
        raise DatasetError(f"{file} must have a column of images. Found {columns}.")
    if label is None:
        raise DatasetError(
            f"{file} must have a column of classes, a ClassLabel or one named like "
            f"{', '.join(CLASS_WORDS[:3])}. Found {columns}."
        )
    column, names = label
    for batch in batches:
        # Row by row, because a batch may hold gigabytes of images.
        for code, cell in zip(batch.column(column), batch.column(picture), strict=True):
            yield Sample(_name_of(code.as_py(), names), _content_of(cell.as_py()))


def _name_of(code: Any, names: list[str]) -> str | None:
    if code is None:
        return None
    if not names:
        return str(code)
    # Test splits of the hub have -1 instead of a class.
    return names[code] if isinstance(code, int) and 0 <= code < len(names) else None


def _content_of(cell: Any) -> bytes | None:
    # Paths are not followed, because a shared dataset must not read other files of the machine.
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    return content if isinstance(content, bytes) and content else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
