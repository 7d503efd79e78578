"""Datasets: listing, packing, splitting and reading images."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.prepared import DevelopmentData, ImageSet, open_development, open_test

__all__ = ["DevelopmentData", "ImageSet", "open_development", "open_test", "prepare_dataset"]
__getattr__ = import_when_used(
    __name__,
    {
        "prepare": ["prepare_dataset"],
        "prepared": ["DevelopmentData", "ImageSet", "open_development", "open_test"],
    },
)
