"""Reads a dataset with a function of the project folder."""

from itertools import pairwise
from pathlib import Path

from dml_core.config.data import OwnData
from dml_core.config.problems import suggest
from dml_core.data.records import DatasetError, ImageRecord, SourceListing, raise_for
from dml_core.own_code import OwnCodeError, call_with_options, load_object


def list_own(config: OwnData) -> SourceListing:
    """Returns the images that a function of the project folder lists, sorted by path.

    The function gets `data.options` as keyword arguments, and raw as a path if it takes it. It
    returns an `ImageRecord` for each image. Files must be in data.raw.

    Raises:
        DatasetError: when it fails, or returns something else.
    """
    root = Path(config.raw)
    try:
        found = call_with_options(
            load_object(config.name),
            name=config.name,
            options=config.options,
            given={"raw": root},
            key="data.options",
            suggest=suggest,
        )
        records = list(found)
    except OwnCodeError as error:
        raise DatasetError(f"data.name={error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        raise DatasetError(f"data.name={config.name} failed while it listed ({reason}).") from error
    odd = [each for each in records if not isinstance(each, ImageRecord)]
    if odd or not records:
        raise DatasetError(
            f"data.name={config.name} must return a dml_core.data.records.ImageRecord for each "
            f"image. Got {f'{len(odd)} others, as {odd[0]!r:.80}' if odd else 'nothing'}."
        )
    records.sort(key=lambda record: record.path)
    paths = [record.path for record in records]
    twice = sorted({one for one, other in pairwise(paths) if one == other})
    raise_for(config.name, [[f"the path {path!r} occurs twice." for path in twice]])
    return SourceListing(records=records, root=root)
