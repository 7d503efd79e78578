"""Writes the images of a prepared dataset as files in a folder per class, for plain scripts."""

import shutil
from pathlib import Path

from PIL import Image

from dml_core.config.data import DataBase, DataConfig
from dml_core.data.prepared import ImageSet, open_development
from dml_core.data.sources.registry import list_images


def write_pictures(config: DataBase, folder: Path) -> None:
    """Writes the packed training and validation images as PNG."""
    for part, images in _parts(config):
        for index, label in enumerate(images.labels):
            pixels = images.image(index)
            flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
            Image.fromarray(flat).save(_file(folder, part, int(label), f"{index:06d}.png"))


def copy_pictures(config: DataConfig, folder: Path) -> None:
    """Copies the files that the training and validation images were packed from."""
    root = list_images(config).root
    assert root is not None, "these images are drawn, not read"
    for part, images in _parts(config):
        for path, label in zip(images.paths, images.labels, strict=True):
            target = _file(folder, part, int(label), Path(path).name)
            shutil.copyfile(root / path, target)


def _parts(config: DataBase) -> list[tuple[str, ImageSet]]:
    data = open_development(config)
    return [("train", data.train), ("validation", data.validation)]


def _file(folder: Path, part: str, label: int, name: str) -> Path:
    # Numbered, so that ImageFolder, which sorts by name, assigns the labels of the dataset.
    path = folder / part / f"{label:05d}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
