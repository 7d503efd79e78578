"""The tiny project that a drill breaks: eight short trials on embedded data."""

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dml_core.config import resolve_trial_config
from dml_core.config.loading import load_params, unflatten
from dml_core.data.prepare import prepare_dataset
from dml_core.data.sources.registry import list_images
from tests.references.empty_databases import copy_databases

STUDY = "tiny"
NUM_TRIALS = 8
NUM_EPOCHS = 12
STUDY_TEXT = """
question: Does a wider embedding help?
arms:
  small: {model.embedding_dim: 4}
  large: {model.embedding_dim: 8}
nuisance: {optimizer.learning_rate: {log_uniform: [0.001, 0.01]}}
trials_per_arm: 2
edge_rounds: 0
seeds: [0, 1]
"""
PARAMS: Mapping[str, Any] = {
    "data.max_classes": 16,
    "data.images_per_class": 8,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 4,
    "model.embedding_dim": 8,
    "training.epochs": NUM_EPOCHS,
    "evaluation.clustering": False,
    "evaluation.ndcg_at": [5, 10],
}


def make_project(folder: Path, *, databases: Path) -> Path:
    """Writes the project, with prepared data that DVC tracks; returns its folder.

    Args:
        folder: folder of the project; must not exist.
        databases: folder with empty databases, which are copied.
    """
    (folder / "studies").mkdir(parents=True)
    (folder / "studies" / f"{STUDY}.yaml").write_text(STUDY_TEXT, encoding="utf-8")
    _write_params(folder, PARAMS)
    changes = {"data.prepared_root": str(folder / "data" / "prepared")}
    data = resolve_trial_config(PARAMS, changes).data
    prepare_dataset(list_images(data), data, workers=1)
    _track(folder, data.prepared_path)
    copy_databases(databases, folder)
    return folder


def _track(folder: Path, data: Path) -> None:
    """Makes the folder a DVC project with the data in its cache."""
    from dvc.repo import Repo

    from tasks.versioning.session import quiet

    with quiet():
        Repo.init(str(folder), no_scm=True).close()
        # Keeps DVC's site cache inside the folder of the drills.
        place = folder.parent / "dvc"
        settings = ("no_scm = true", "analytics = false", f"site_cache_dir = {place}")
        text = "".join(f"    {line}\n" for line in settings)
        (folder / ".dvc" / "config").write_text(f"[core]\n{text}", encoding="utf-8")
        repo = Repo(str(folder))
        try:
            repo.add([str(data)])
        finally:
            repo.close()


def copy_project(project: Path, folder: Path, *, params: Mapping[str, Any]) -> Path:
    """Copies a project that has not run yet, and changes some of its parameters."""
    shutil.copytree(project, folder)
    if params:
        change_params(folder, params)
    return folder


def change_params(folder: Path, params: Mapping[str, Any]) -> None:
    """Changes parameters of a project, by dotted key."""
    _write_params(folder, {**load_params(folder / "params.yaml"), **params})


def _write_params(folder: Path, params: Mapping[str, Any]) -> None:
    text = json.dumps(unflatten(params), indent=2)
    (folder / "params.yaml").write_text(text + "\n", encoding="utf-8")


def read_keys(folder: Path) -> dict[str, str]:
    """Returns the key of each trial that the sweep of a project has requested."""
    path = folder / "results" / ".sweeps" / STUDY / "trials.jsonl"
    return parse_keys(path.read_text(encoding="utf-8").splitlines() if path.exists() else [])


def parse_keys(lines: Sequence[str]) -> dict[str, str]:
    """Returns the key of each trial that the lines of a ledger request."""
    keys = {}
    for text in lines:
        # A full disk or a write in progress leaves a torn line, which the product skips too.
        with contextlib.suppress(json.JSONDecodeError):
            line = json.loads(text)
            if line["event"] == "requested":
                keys[line["trial"]["trial_id"]] = line["key"]
    return keys
