"""What a dataset source says of its images before any pixel is read."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

# train: development classes, from which validation classes are carved out.
# test, query, gallery: quarantined; query and gallery where the benchmark has both.
# undecided: no official split, data.test_fraction decides by class.
Role = Literal["train", "test", "query", "gallery", "undecided"]


class DatasetError(ValueError):
    """A dataset is missing, partial, wrong, or cannot be used; says which file and what to do."""


@dataclass(frozen=True)
class ImageRecord:
    """One image: where it is, what it shows, and what it may be used for."""

    path: str
    """Unique name within the dataset, with forward slashes; records are sorted by it."""
    class_name: str
    role: Role
    file: Path | None = None
    """The image file; None where `pixels` holds the image."""
    pixels: np.ndarray | None = None
    """(H, W) or (H, W, 3) uint8, for sources that draw their images or read them in bulk."""
    continuous: dict[str, float] = field(default_factory=dict)
    """Continuous labels by column name; every record of a dataset has the same columns."""


@dataclass(frozen=True)
class SourceListing:
    """Every image of a dataset, and the folder that none of its files may leave."""

    records: list[ImageRecord]
    root: Path | None
    """Folder that files must stay within, also through links; None for drawn images."""
