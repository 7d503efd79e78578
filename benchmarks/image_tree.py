"""Writes the images of the input benchmark as a tree `class/image.jpg`."""

import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

from PIL import Image

from dml_core.config.data import GlyphsData
from dml_core.data.sources.registry import list_images

Readers = dict[str, Callable[[], bytes]]

SIDE_PX = 112
"""Shorter side of the photographs, and both sides of the glyphs."""


def write_tree(folder: Path, cars: Path | None, *, classes: int, images_per_class: int) -> str:
    """Fills a folder and returns a description of the images.

    Args:
        folder: gets one folder per class.
        cars: Cars-196 as a zip file or a folder with one folder per class; None draws glyphs.
        classes: number of classes to take.
        images_per_class: number of images to take from each class.
    """
    if cars is None:
        _draw(folder, classes=classes, images_per_class=images_per_class)
        return f"glyphs of {SIDE_PX} px stand in for Cars-196"
    seen: Counter[str] = Counter()
    files = _zipped(cars) if cars.is_file() else _listed(cars)
    for name in sorted(files):
        place = PurePosixPath(name)
        seen[place.parent.name] += 1
        if len(seen) <= classes and seen[place.parent.name] <= images_per_class:
            target = folder / place.parent.name / place.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[name]())
    return "Cars-196"


def _zipped(archive: Path) -> Readers:
    opened = zipfile.ZipFile(archive)
    names = [name for name in opened.namelist() if name.endswith(".jpg")]
    return {name: partial(opened.read, name) for name in names}


def _listed(folder: Path) -> Readers:
    return {path.as_posix(): path.read_bytes for path in folder.rglob("*.jpg")}


def _draw(folder: Path, *, classes: int, images_per_class: int) -> None:
    config = GlyphsData(
        image_size_px=SIDE_PX, max_classes=classes, images_per_class=images_per_class
    )
    for record in list_images(config).records:
        assert record.pixels is not None
        target = (folder / record.path).with_suffix(".jpg")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(record.pixels).convert("RGB").save(target, quality=90)
