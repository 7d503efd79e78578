"""The images and trunks of the benchmark over frozen trunks."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.projects import Project
from dml_core.models.weights import find_package_file

IMAGES_PER_CLASS = 20
ARCHIVE = "cars196.zip"


@dataclass(frozen=True)
class Subject:
    """The images and the trunk that both sides use."""

    name: str
    fixed: dict[str, Any]
    last_block: str
    """Name of the trunk's last block in our configuration."""
    source: Path | None
    """The files of the images; None if they are drawn."""
    options: dict[str, object]
    """Options of the scripts that select the trunk."""


def choose_subject(cars: Path | None) -> Subject:
    """Returns Cars-196 with pretrained weights if available, else glyphs without."""
    if cars is not None and (source := _find_archive(cars)) is not None:
        data = {
            "data.name": "folder",
            "data.alias": "bench-cars",
            "data.raw": f"data/raw/{ARCHIVE}" if source.is_file() else str(source),
            "data.resize": "shorter",
            "data.color": "rgb",
            "data.test_selection": "last",
            # Cars-196 has copies; the other side reads them too.
            "data.on_leak": "allow",
            "data.max_images_per_class": IMAGES_PER_CLASS,
            "model.backbone": "timm:tf_efficientnet_lite0",
            "model.weights": "package:efficientnet_lite0",
        }
        weights: dict[str, object] = {"weights": find_package_file()}
        return Subject("Cars-196", data, "blocks.6", source, weights)
    drawn = {
        "data.alias": "bench-glyphs",
        "data.images_per_class": IMAGES_PER_CLASS,
        "model.backbone": "timm:resnet18",
    }
    options: dict[str, object] = {"trunk": "resnet18", "num_features": 512}
    return Subject("glyphs and resnet18 stand in", drawn, "layer4", None, options)


def _find_archive(path: Path) -> Path | None:
    inside = path / ARCHIVE
    found = inside if inside.is_file() else path
    return found.resolve() if found.exists() else None


def bring_archive(project: Project, subject: Subject) -> None:
    """Copies the archive into the project, since it is unpacked beside itself."""
    if subject.source is not None and subject.source.is_file():
        shutil.copyfile(subject.source, project.folder / "data" / "raw" / ARCHIVE)
