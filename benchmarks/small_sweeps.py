"""A sweep of a few tiny trials on a local cluster against the same trials in a loop."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.in_process import list_specs, train_specs
from benchmarks.projects import make_project
from dml_core.data.prepare import prepare_dataset
from dml_core.data.sources.registry import list_images
from tasks.study import StudyRequest, load_context
from tasks.sweep.run import run_sweep

SMALLEST = {
    "data.alias": "glyphs-smallest",
    "data.max_classes": 16,
    "data.images_per_class": 8,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 4,
    "model.embedding_dim": 8,
    "training.epochs": 2,
    "evaluation.clustering": False,
}


def compare_small_sweep() -> float:
    """Returns the largest difference of any validation score between a sweep and a plain loop."""
    study: dict[str, Any] = {
        "question": "Is a trial of a sweep the trial?",
        "arms": {"anchor": {"loss.name": "proxy_anchor"}, "triplet": {"loss.name": "triplet"}},
        "fixed": SMALLEST,
        "seeds": [0],
    }
    with tempfile.TemporaryDirectory(prefix="dml-bench-") as name:
        folder = Path(name)
        make_project(folder, {}).write_study("small", study)
        with contextlib.chdir(folder):
            return _compare(folder)


def _compare(folder: Path) -> float:
    context = load_context(StudyRequest(study="small"))
    for data in context.datasets:
        prepare_dataset(list_images(data), data, workers=1)
    result = run_sweep(context.study, context.project.pipeline, folder=context.working_folder)
    trained = train_specs(list_specs("small"), folder / "trained")
    found = {record.spec.trial_id: record.validation for record in result.repeat_records}
    assert found.keys() == trained.keys()
    return max(
        abs(value - found[trial][name])
        for trial, each in trained.items()
        for name, value in each["validation"].items()
    )
