"""Small datasets for tests, drawn instead of downloaded."""

from pathlib import Path

import numpy as np
from PIL import Image

from dml_core.config.data import FolderData
from dml_core.data.records import ImageRecord, SourceListing


def draw_pixels(number: int, height: int = 12, width: int = 10) -> np.ndarray:
    """Returns (H, W, 3) noise that differs for each number."""
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_tree(root: Path, *, num_classes: int = 6, num_images: int = 3) -> SourceListing:
    """Writes PNG files `c00/0.png` and lists them without an official split."""
    records = []
    for label in range(num_classes):
        for number in range(num_images):
            path = f"c{label:02d}/{number}.png"
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_pixels(100 * label + number)).save(file)
            labels = {"angle": 10.0 * number, "height": float(label)}
            records.append(
                ImageRecord(path, f"c{label:02d}", "undecided", file=file, continuous=labels)
            )
    return SourceListing(records, root)


def drawn_listing(*, num_classes: int = 6, num_images: int = 3) -> SourceListing:
    """Lists drawn images that have pixels instead of files."""
    return SourceListing(
        [
            ImageRecord(
                f"c{label:02d}/{number}",
                f"c{label:02d}",
                "undecided",
                pixels=draw_pixels(100 * label + number, 8, 8)[:, :, 0],
            )
            for label in range(num_classes)
            for number in range(num_images)
        ],
        None,
    )


def tree_config(folder: Path, **values: object) -> FolderData:
    """Returns a small configuration that prepares below the folder."""
    settings = {"prepared_root": str(folder / "prepared"), "alias": "tiny", "image_size_px": 8}
    return FolderData.model_validate({**settings, **values})
