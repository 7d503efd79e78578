"""Tiny datasets in the official layouts, prepared as the studies' paper profiles ask for them."""

import csv
from pathlib import Path

import numpy as np

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.config.loading import to_flat_dict
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import DevelopmentData, open_development
from dml_core.data.records import SourceListing
from dml_core.data.sources.cars196 import list_cars196
from dml_core.data.sources.folder import list_folder
from dml_core.data.sources.published import list_cub200, list_inshop, list_sop
from tests.references import official_layouts as layouts

OFFICIAL = {
    "cub200": (layouts.write_cub200, list_cub200),
    "cars196": (layouts.write_cars196, list_cars196),
    "sop": (layouts.write_sop, list_sop),
    "inshop": (layouts.write_inshop, list_inshop),
}
SIZE = {"train_classes": 18, "test_classes": 2, "images_per_class": 5}
NUM_JOINTS = 16


def shrink(config: TrialConfig, root: Path) -> TrialConfig:
    """Returns a trial of a paper profile as it is but for sizes, weights and places."""
    sampler = config.sampler
    changes: dict[str, object] = {
        "data.prepared_root": str(root / "prepared"),
        "data.raw": str(root / "raw" / config.data.name),
        "data.image_size_px": 48,
        "augmentation.input_size_px": 32,
        "sampler.batch_size": 12,
        # Nothing can be downloaded in a test.
        "model.weights": "none",
    }
    samples = getattr(sampler, "samples_per_class", None)
    if samples is not None:
        # The same number of classes in a batch, as far as twelve images go.
        changes["sampler.samples_per_class"] = max(1, round(12 * samples / sampler.batch_size))
    if hasattr(sampler, "nearest"):
        changes["sampler.nearest"] = min(8, sampler.nearest)
    return resolve_trial_config(to_flat_dict(config), changes)


def prepare_official(config: TrialConfig) -> DevelopmentData:
    """Writes and prepares the tiny dataset that a shrunken trial reads, unless it is there."""
    if not config.data.prepared_path.exists():
        prepare_dataset(_list_images(config), config.data, workers=1)
    return open_development(config.data)


def _list_images(config: TrialConfig) -> SourceListing:
    raw = Path(config.data.raw)  # type: ignore[union-attr]
    raw.mkdir(parents=True, exist_ok=True)
    if config.data.name == "folder":
        _write_poses(raw, columns=config.data.continuous_labels)
        return list_folder(config.data)
    write, list_images = OFFICIAL[config.data.name]
    counts = write(raw, **SIZE)
    return list_images(config.data, counts=counts)  # type: ignore[operator]


def _write_poses(folder: Path, *, columns: tuple[str, ...]) -> None:
    """Writes images and poses.csv with joints in pixels, every image a class of its own."""
    random = np.random.default_rng(0)
    with open(folder / "poses.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "split", *columns])
        for number in range(60):
            layouts.write_image(folder / f"{number}.png", seed=number)
            split = "train" if number < 40 else ("query" if number < 44 else "gallery")
            writer.writerow([f"{number}.png", split, *random.uniform(0, 288, len(columns))])
