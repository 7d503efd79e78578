"""Opens the images that a command's --split names."""

from dml_core.config.data import DataBase
from dml_core.data.prepared import ImageSet, PreparedInfo, open_development, open_test
from dml_core.data.writing import TEST
from tasks.versioning.restoring import ensure_whole


def open_split(config: DataBase, split: str) -> tuple[ImageSet, PreparedInfo]:
    """Returns the validation or the test images and what is known of their dataset."""
    if split == "test":
        ensure_whole(config, (TEST,))
        return open_test(config)
    if split == "validation":
        ensure_whole(config)
        development = open_development(config)
        return development.validation, development.info
    raise ValueError(f"--split must be test or validation. Got {split!r}.")
