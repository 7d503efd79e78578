"""Packed images and batched augmentation against ImageFolder and DataLoader."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.transforms import functional

from benchmarks.image_tree import SIDE_PX, write_tree
from benchmarks.rows import Row, make_row
from benchmarks.settings import Settings
from benchmarks.timing import WALL, time_in_turns
from dml_core.config.data import AugmentationConfig, FolderData
from dml_core.data.inputs import ImageInputs, cut_boxes, training_boxes
from dml_core.data.parallel import prefetch
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import ImageSet, open_development
from dml_core.data.sources.registry import list_images
from dml_core.process_memory import prepare_memory
from dml_core.seeding import numpy_stream
from dml_core.training.determinism import limited_threads

GROUP = "input"
BATCH, WORKERS, ROUNDS = 60, 2, 5
AUGMENTATION = AugmentationConfig(crop="random_resized", flip="image")
TOLERANCE = 2 / 255
"""Pillow and torch resize with weights of different precision: one or two levels of 255."""


def run_inputs(settings: Settings) -> list[Row]:
    """Returns the row of images per second."""
    classes, per_class = (16, 12) if settings.short else (98, 40)
    # As in every training; affects both sides, which run in this process.
    prepare_memory()
    # Removed after the loaders, whose workers read from it.
    with tempfile.TemporaryDirectory(prefix="dml-bench-") as folder, limited_threads(1):
        tree = Path(folder) / "tree"
        note = write_tree(tree, settings.cars, classes=classes, images_per_class=per_class)
        config = FolderData(
            raw=str(tree),
            prepared_root=str(Path(folder) / "prepared"),
            image_size_px=SIDE_PX,
            # Cars-196 has copies; the other side reads them too.
            on_leak="allow",
        )
        prepare_dataset(list_images(config), config, workers=1 if settings.short else None)
        images = open_development(config).train
        return [_measure(images, tree, note, settings)]


def _measure(images: ImageSet, tree: Path, note: str, settings: Settings) -> Row:
    difference = _compare_pixels(images, tree)
    loader = _make_loader(tree, workers=0 if settings.short else WORKERS)
    numbers = {"ours": len(images) // BATCH, "theirs": len(loader)}
    runs = {
        "ours": lambda: _exhaust(_our_batches(images)),
        "theirs": lambda: _exhaust(batch for batch, _ in loader),
    }
    if settings.short:
        runs["ours"](), runs["theirs"]()
    seconds = time_in_turns(runs, settings, rounds=ROUNDS, clock=WALL)
    rates = {key: [numbers[key] * BATCH / each for each in taken] for key, taken in seconds.items()}
    return make_row(
        GROUP,
        f"random crops of {SIDE_PX} px, flips, {WORKERS} workers",
        ours=rates["ours"],
        theirs=rates["theirs"],
        target=5.0,
        direction="at least",
        unit="images/s",
        against="ImageFolder and DataLoader",
        note=note,
        difference=difference,
        tolerance=TOLERANCE,
    )


def _our_batches(images: ImageSet) -> Iterator[Tensor]:
    """Yields an epoch of augmented batches, as in training."""
    inputs = ImageInputs(images, size_px=SIDE_PX, config=AUGMENTATION)
    order = numpy_stream(0, "batches").permutation(len(images))
    starts = range(0, len(order) - BATCH + 1, BATCH)

    def make(start: int) -> Tensor:
        stream = numpy_stream(0, "augmentation", step=start)
        return inputs.augmented(order[start : start + BATCH], stream)

    return prefetch(make, starts, workers=WORKERS)


def _make_loader(tree: Path, *, workers: int) -> "DataLoader[tuple[Tensor, Tensor]]":
    """Returns the usual DataLoader of a script; its workers persist between epochs."""
    steps = [
        transforms.RandomResizedCrop(
            SIDE_PX,
            scale=(AUGMENTATION.min_area, 1.0),
            ratio=(1 / AUGMENTATION.max_aspect, AUGMENTATION.max_aspect),
        ),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    return DataLoader(
        datasets.ImageFolder(str(tree), transforms.Compose(steps)),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def _exhaust(batches: Iterable[Tensor]) -> None:
    for batch in batches:
        assert batch.dtype == torch.uint8


def _compare_pixels(images: ImageSet, tree: Path) -> float:
    """Returns the largest difference between the same random crops read both ways, in [0, 1]."""
    chosen = np.arange(0, len(images), max(1, len(images) // 30))
    boxes = training_boxes(
        images.sizes[chosen],
        size_px=SIDE_PX,
        config=AUGMENTATION,
        stream=numpy_stream(0, "augmentation"),
    )
    ours = cut_boxes(images, chosen, boxes, size_px=SIDE_PX)
    differences = []
    for row, (index, box) in enumerate(zip(chosen, boxes, strict=True)):
        with open(tree / images.paths[index], "rb") as file:
            picture = Image.open(file).convert("RGB")
        top, left, height, width = (int(value) for value in box)
        theirs = functional.resized_crop(picture, top, left, height, width, [SIDE_PX, SIDE_PX])
        pixels = functional.pil_to_tensor(theirs).int()
        differences.append(float((ours[row].int() - pixels).abs().max()) / 255)
    return max(differences)
