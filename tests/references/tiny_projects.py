"""Whole projects with the real code, whose studies take seconds, for tests of the pipeline."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from dml_core.config.loading import load_params, unflatten
from tests.references import dvc_projects
from tests.references.empty_databases import give_databases

ROOT = Path(__file__).parents[2]
TINY = {
    "data.max_classes": 16,
    "data.images_per_class": 8,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 4,
    "model.embedding_dim": 8,
    "training.epochs": 1,
    "evaluation.clustering": False,
}
TWO_ARMS = """
question: Which of two losses?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0]
figure: {kind: bar, x: arm, y: test.recall_at_1}
"""
ENDLESS = TWO_ARMS + "fixed: {training.epochs: 100000}\n"


def make_project(folder: Path, studies: Mapping[str, str]) -> Path:
    """Makes a git and DVC project with tiny parameters, these studies, and a home of its own."""
    dvc_projects.make_project(folder, studies=tuple(studies))
    # The real command is wanted here, not the stub of it.
    shutil.rmtree(folder / ".bin")
    for package in ("dml_core", "tasks", "flows"):
        shutil.rmtree(folder / package, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    params = {**load_params(folder / "params.yaml"), **TINY}
    (folder / "params.yaml").write_text(json.dumps(unflatten(params)), encoding="utf-8")
    for name, text in studies.items():
        (folder / "studies" / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "home").mkdir()
    return give_databases(folder)
