"""A sweep over a frozen pretrained trunk against sequential runs of plain scripts."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.first_features import compare_features
from benchmarks.frozen_scripts import Scripts, ScriptSeconds
from benchmarks.frozen_subjects import Subject, bring_archive, choose_subject
from benchmarks.image_folders import copy_pictures, write_pictures
from benchmarks.projects import Project, open_served_project
from benchmarks.rows import Row, make_row
from benchmarks.scaling import count_rate
from benchmarks.settings import Settings
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.sources.registry import list_images
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import training_batches
from dml_core.training.state import build_state
from dml_core.trials.table import read_trials
from tasks.study import StudyRequest, load_context

GROUP = "frozen_trunk"
TRIALS, CORES = 100, 2
LAST_BLOCK_TRIALS = 4
EPOCHS, LAST_BLOCK_EPOCHS = 20, 4
SIZE_PX = 112
TOLERANCE = 2e-3
"""Relative; cached activations are in half precision."""
COMMON = {
    "data.image_size_px": SIZE_PX,
    "augmentation.crop": "center",
    "model.pooling": "avg",
    "sampler.batch_size": 120,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "training.freeze_batch_norm": True,
    "evaluation.clustering": False,
}


def run_frozen_trunk(settings: Settings) -> list[Row]:
    """Returns rows for the head alone and for the last block, each against two kinds of scripts."""
    if settings.short:
        return [
            _row(f"first loss, {part}", [1.0], [1.0], target=1.0, against="plain script",
                 difference=compare_features(last_block=part == "last stage"))
            for part in ("head", "last stage")
        ]  # fmt: skip
    subject, project = choose_subject(settings.cars), open_served_project()
    bring_archive(project, subject)
    _write_studies(project, subject)
    with tempfile.TemporaryDirectory(prefix="dml-bench-") as name:
        scripts = {
            is_last: Scripts(
                subject, Path(name), trials=TRIALS, size_px=SIZE_PX, last_block=is_last,
                epochs=LAST_BLOCK_EPOCHS if is_last else EPOCHS,
            )
            for is_last in (False, True)
        }  # fmt: skip
        _write_images(project, subject, Path(name) / "images")
        # Before and after the sweeps, so that a change of the machine's speed affects both sides.
        first = {is_last: each.measure() for is_last, each in scripts.items()}
        head = project.run("stage", "sweep", "head")
        last, low = (_time_last_block(project, study) for study in ("last", "bfloat16"))
        floor = TRIALS * LAST_BLOCK_EPOCHS / CORES * _time_bare_epoch(project, "last")
        plain = {is_last: [first[is_last], each.measure()] for is_last, each in scripts.items()}
    extrapolated = f"ours extrapolated from {LAST_BLOCK_TRIALS} trials"
    floor_note = f"bare steps of the last stage on both cores take {floor / last:.2f} of our time"
    low_note = f"R@1 {_compare_scores(project, 'bfloat16', 'last'):+.3f} on average by that"
    last_block = f"{TRIALS} trials of {LAST_BLOCK_EPOCHS} epochs, last stage"
    return [
        *_make_rows(
            f"{TRIALS} trials of {EPOCHS} epochs, head only, {subject.name}", head, plain[False]
        ),
        *_make_rows(
            f"{last_block}, {subject.name}", last, plain[True],
            note=f"{extrapolated}; {floor_note}; ",
        ),
        *_make_rows(
            f"{last_block} with training.precision: bfloat16, {subject.name}", low, plain[True],
            note=f"{extrapolated}; {low_note}; ",
        ),
    ]  # fmt: skip


def _write_studies(project: Project, subject: Subject) -> None:
    """Writes the studies of all sweeps, and packs their images; no activations are cached yet."""
    stage, low = {"trunk.train": f"from:{subject.last_block}"}, {"training.precision": "bfloat16"}
    parts = {
        "head": ({"trunk.train": "none"}, TRIALS, EPOCHS),
        "last": (stage, LAST_BLOCK_TRIALS, LAST_BLOCK_EPOCHS),
        "bfloat16": ({**stage, **low}, LAST_BLOCK_TRIALS, LAST_BLOCK_EPOCHS),
    }
    for name, (fixed, trials, epochs) in parts.items():
        project.write_study(name, _make_study({**subject.fixed, **fixed}, trials, epochs))
    with contextlib.chdir(project.folder):
        for data in load_context(StudyRequest(study="head")).datasets:
            prepare_dataset(list_images(data), data)


def _make_study(fixed: Mapping[str, Any], trials: int, epochs: int) -> dict[str, Any]:
    return {
        "question": "Which learning rate?",
        "arms": {"anchor": {"loss.name": "proxy_anchor"}},
        "fixed": {
            **COMMON,
            **fixed,
            "training.epochs": epochs,
            # As in the scripts, which save only the final weights.
            "training.checkpoint_every": epochs,
        },
        "nuisance": {"optimizer.learning_rate": {"log_uniform": [0.0003, 0.003]}},
        "trials_per_arm": trials,
        "edge_rounds": 0,
        "searcher": "random",
        "seeds": [0],
    }


def _time_last_block(project: Project, study: str) -> float:
    """Returns the seconds of a whole sweep, extrapolated from a few trials."""
    seconds = project.run("stage", "sweep", study)
    return seconds + (TRIALS - LAST_BLOCK_TRIALS) / _count_rate(project, study)


def _compare_scores(project: Project, study: str, other: str) -> float:
    """Returns the mean R@1 of a study minus that of another with the same learning rates."""

    def mean(name: str) -> float:
        records = read_trials(project.folder / "results" / name / "sweep" / "trials.parquet")
        return statistics.fmean(record.validation["recall_at_1"] for record in records)

    return mean(study) - mean(other)


def _count_rate(project: Project, study: str) -> float:
    """Returns the trials per second of a study's last sweep."""
    results = project.folder / "results"
    # The winner's repeat has the key of a search trial.
    keys = {record.key for record in read_trials(results / study / "sweep" / "trials.parquet")}
    ended = [results / ".trials" / key / "result.json" for key in keys]
    return count_rate([path.stat().st_mtime for path in ended], CORES)


def _time_bare_epoch(project: Project, study: str) -> float:
    """Returns the seconds of an epoch's steps only, on one core with all inputs in memory."""
    with contextlib.chdir(project.folder), limited_threads(1):
        found = load_context(StudyRequest(study=study)).study
        config = found.arm_config(found.arms[0].name)
        state = build_state(config, open_development(config.data))
        classes = state.targets.classes
        batches = [
            (inputs, torch.from_numpy(classes[batch.indices]))
            for batch, inputs in training_batches(state)
        ]
        for is_measured in (False, True):
            started = time.process_time()
            for inputs, labels in batches[: None if is_measured else 2]:
                state.optimizer.zero_grad(set_to_none=True)
                state.loss(state.network(inputs), labels).backward()
                state.optimizer.step()
        return time.process_time() - started


def _write_images(project: Project, subject: Subject, folder: Path) -> None:
    with contextlib.chdir(project.folder):
        (data,) = load_context(StudyRequest(study="head")).datasets
        if subject.source is None:
            write_pictures(data, folder)
        else:
            copy_pictures(data, folder)


def _make_rows(
    name: str, seconds: float, plain: list[ScriptSeconds], *, note: str = ""
) -> list[Row]:
    ours = [3600 / seconds] * len(plain)
    return [
        _row(
            name,
            ours,
            [3600 / each.running for each in plain],
            target=200.0,
            against="scripts that run the trunk each epoch",
            note=f"{note}theirs from an epoch before and one after",
        ),
        _row(
            name,
            ours,
            [3600 / each.cached for each in plain],
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
