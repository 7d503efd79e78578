"""Opens the images that a command's --split names."""

from dml_core.config.data import DataBase
from dml_core.data.prepared import ImageSet, PreparedInfo, open_development, open_test


def open_split(config: DataBase, split: str) -> tuple[ImageSet, PreparedInfo]:
    """Returns the validation or the test images and what is known of their dataset."""
    if split == "test":
        return open_test(config)
    if split == "validation":
        development = open_development(config)
        return development.validation, development.info
    raise ValueError(f"--split must be test or validation. Got {split!r}.")
