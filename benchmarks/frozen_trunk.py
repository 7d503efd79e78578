"""A sweep over a frozen pretrained trunk against plain scripts, one after another."""

import contextlib
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.first_features import compare_features
from benchmarks.image_folders import copy_pictures, write_pictures
from benchmarks.plain_runs import run_script
from benchmarks.projects import Project, open_served_project
from benchmarks.rows import Row, make_row
from benchmarks.settings import Settings
from dml_core.models.weights import find_package_file
from tasks.context import StudyRequest, load_context

GROUP = "frozen_trunk"
TRIALS = 100
LAST_STAGE_TRIALS = 4
EPOCHS = 20
SIZE_PX, IMAGES_PER_CLASS = 112, 20
ARCHIVE = "cars196.zip"
TOLERANCE = 2e-3
"""Relative; what is kept of the images is in half precision."""
COMMON = {
    "data.image_size_px": SIZE_PX,
    "augmentation.crop": "center",
    "model.pooling": "avg",
    "sampler.batch_size": 120,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "training.epochs": EPOCHS,
    # As in the scripts, which keep the end of a training alone.
    "training.checkpoint_every": EPOCHS,
    "training.freeze_batch_norm": True,
    "evaluation.clustering": False,
}


@dataclass(frozen=True)
class Subject:
    """The images and the trunk that both sides use."""

    name: str
    fixed: dict[str, Any]
    last_stage: str
    """Name of the trunk's last stage here."""
    source: Path | None
    """The files of the images; None where they are drawn."""
    options: dict[str, object]
    """What tells the scripts the trunk."""


def run_frozen_trunk(settings: Settings) -> list[Row]:
    """Returns rows for the head alone and for the last stage, each against two kinds of scripts."""
    if settings.short:
        return [
            _row(f"first loss, {part}", [1.0], [1.0], target=1.0, against="plain script",
                 difference=compare_features(last_stage=part == "last stage"))
            for part in ("head", "last stage")
        ]  # fmt: skip
    subject, project = choose_subject(settings.cars), open_served_project()
    _bring_archive(project, subject)
    with tempfile.TemporaryDirectory(prefix="dml-bench-") as name:
        head = _measure_sweep(project, subject, "head", trials=TRIALS)
        last = _measure_sweep(project, subject, "last", trials=LAST_STAGE_TRIALS)
        _write_images(project, subject, Path(name) / "images")
        plain = {
            is_last: _measure_scripts(subject, Path(name), last_stage=is_last)
            for is_last in (False, True)
        }
    return [
        *_make_rows(f"{TRIALS} trials, head only, {subject.name}", head, plain[False]),
        *_make_rows(
            f"{TRIALS} trials, last stage, {subject.name}",
            last * TRIALS / LAST_STAGE_TRIALS,
            plain[True],
            note=f"ours extrapolated from {LAST_STAGE_TRIALS} trials; ",
        ),
    ]


def choose_subject(cars: Path | None) -> Subject:
    """Returns Cars-196 with real weights where it is there, else drawn characters without."""
    if cars is not None and (source := _find_archive(cars)) is not None:
        data = {
            "data.name": "folder",
            "data.alias": "bench-cars",
            "data.raw": f"data/raw/{ARCHIVE}" if source.is_file() else str(source),
            "data.resize": "shorter",
            "data.color": "rgb",
            "data.test_selection": "last",
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


def _bring_archive(project: Project, subject: Subject) -> None:
    """Copies the archive into the project: it is unpacked beside itself, and is not ours."""
    if subject.source is not None and subject.source.is_file():
        shutil.copyfile(subject.source, project.folder / "data" / "raw" / ARCHIVE)


def _measure_sweep(project: Project, subject: Subject, name: str, *, trials: int) -> float:
    """Returns the seconds of a sweep with the images packed and nothing of the trunk known."""
    train = "none" if name == "head" else f"from:{subject.last_stage}"
    study = {
        "question": "Which learning rate?",
        "arms": {"anchor": {"loss.name": "proxy_anchor"}},
        "fixed": {**COMMON, **subject.fixed, "trunk.train": train},
        "nuisance": {"optimizer.learning_rate": {"log_uniform": [0.0003, 0.003]}},
        "trials_per_arm": trials,
        "searcher": "random",
        "seeds": [0],
    }
    project.write_study(name, study)
    with contextlib.chdir(project.folder):
        context = load_context(StudyRequest(study=name))
        for data in context.datasets:
            _prepare(data)
    return project.run("stage", "sweep", name)


def _prepare(data: Any) -> None:
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.sources.registry import list_images

    prepare_dataset(list_images(data), data)


def _write_images(project: Project, subject: Subject, folder: Path) -> None:
    with contextlib.chdir(project.folder):
        (data,) = load_context(StudyRequest(study="head")).datasets
        if subject.source is None:
            write_pictures(data, folder)
        else:
            copy_pictures(data, folder)


@dataclass(frozen=True)
class ScriptSeconds:
    """What as many trainings take by scripts."""

    running: float
    """That run the trunk in every epoch."""
    cached: float
    """That read what it gives from a file."""


def _measure_scripts(subject: Subject, folder: Path, *, last_stage: bool) -> ScriptSeconds:
    options: dict[str, object] = {
        "images": folder / "images",
        "size_px": SIZE_PX,
        "epochs": EPOCHS,
        **subject.options,
        **({"last_stage": True} if last_stage else {}),
    }
    one = run_script("frozen_trunk", folder, run_epochs=1, **options)
    epoch = one.result["epoch_seconds"][0]
    running = one.seconds - epoch + EPOCHS * epoch
    file = folder / f"features{int(last_stage)}.npz"
    runs = [run_script("frozen_trunk", folder, features=file, **options) for _ in range(3)]
    later = statistics.median(run.seconds for run in runs[1:])
    return ScriptSeconds(TRIALS * running, runs[0].seconds + (TRIALS - 1) * later)


def _make_rows(name: str, ours: float, plain: ScriptSeconds, *, note: str = "") -> list[Row]:
    return [
        _row(
            name,
            [3600 / ours],
            [3600 / plain.running],
            target=200.0,
            against="scripts that run the trunk each epoch",
            note=f"{note}theirs from one epoch",
        ),
        _row(
            name,
            [3600 / ours],
            [3600 / plain.cached],
            target=4.0,
            against="scripts that keep the features in a file",
            note=f"{note}theirs from 3 trainings",
        ),
    ]


def _row(
    name: str,
    ours: list[float],
    theirs: list[float],
    *,
    target: float,
    against: str,
    note: str = "",
    difference: float | None = None,
) -> Row:
    return make_row(
        GROUP,
        name,
        ours=ours,
        theirs=theirs,
        target=target,
        direction="at least",
        unit="sweeps/h",
        against=against,
        note=note,
        difference=difference,
        tolerance=TOLERANCE,
    )
