"""The dataset sources by name."""

from collections.abc import Callable, Mapping
from typing import Any

from dml_core.config.data import DataConfig, GlyphsData, OwnData
from dml_core.config.problems import suggest
from dml_core.data.records import DatasetError, SourceListing
from dml_core.data.sources.cars196 import list_cars196
from dml_core.data.sources.fashion_mnist import list_fashion_mnist
from dml_core.data.sources.folder import list_folder
from dml_core.data.sources.own import list_own
from dml_core.data.sources.published import list_cub200, list_inshop, list_omniglot, list_sop


def _list_glyphs(config: GlyphsData) -> SourceListing:
    # Imported late: matplotlib takes a second to load, and other sources do not need it.
    from dml_core.data.sources.glyphs import list_glyphs

    return list_glyphs(config)


SOURCES: Mapping[str, Callable[[Any], SourceListing]] = {
    "glyphs": _list_glyphs,
    "cub200": list_cub200,
    "cars196": list_cars196,
    "sop": list_sop,
    "inshop": list_inshop,
    "omniglot": list_omniglot,
    "fashion_mnist": list_fashion_mnist,
    "folder": list_folder,
}
"""The function that lists the images of a dataset, by data.name."""


def list_images(config: DataConfig) -> SourceListing:
    """Returns all images of the configured dataset, sorted by path.

    Raises:
        DatasetError: if the dataset is missing, partial or wrong, or lacks a column of
            data.continuous_labels.
    """
    listing = list_own(config) if isinstance(config, OwnData) else SOURCES[config.name](config)
    _check_continuous_labels(config, listing)
    return listing


def _check_continuous_labels(config: DataConfig, listing: SourceListing) -> None:
    columns = sorted(listing.records[0].continuous) if listing.records else []
    for name in config.continuous_labels:
        if name not in columns:
            raise DatasetError(
                f"data.continuous_labels must name continuous columns of dataset {config.name!r}. "
                f"Got {name!r}; it has {', '.join(columns) or 'none'}.{suggest(name, columns)}"
            )
