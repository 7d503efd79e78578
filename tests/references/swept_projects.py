"""Projects whose one study has winners, for tests of the evaluation."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dml_core.config.loading import load_params, unflatten
from dml_core.data.prepared import open_development
from dml_core.training.in_folder import train_in_folder
from tasks.study import StudyRequest, load_context
from tests.references.tiny_trials import TINY

ROOT = Path(__file__).parents[2]
STUDY = """
question: Which of two losses?
arms:
  anchor: {loss.name: proxy_anchor}
  untrained: {loss.name: proxy_nca, optimizer.learning_rate: 1e-9}
fixed: {training.epochs: 2}
seeds: [0, 1]
measures: [gradients, step_cost]
"""


def write_params(folder: Path, changes: Mapping[str, object] | None = None) -> None:
    """Writes the tiny parameters, with some changes, to params.yaml of a project."""
    params = {**load_params(ROOT / "params.yaml"), **TINY, **(changes or {})}
    (folder / "params.yaml").write_text(json.dumps(unflatten(params)))


def add_swept_study(folder: Path, changes: Mapping[str, object] | None = None) -> None:
    """Adds study `tiny` with its winners to a project whose tiny data are prepared."""
    write_params(folder, changes)
    (folder / "studies").mkdir(exist_ok=True)
    (folder / "studies" / "tiny.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        context = load_context(StudyRequest(study="tiny"))
        for spec in context.study.repeat_specs({"anchor": {}, "untrained": {}}):
            target = context.sweep_folder / "winners" / spec.trial_id
            train_in_folder(spec.config, open_development(spec.config.data), target)
            newest = max((target / "checkpoints").iterdir())
            newest.rename(target / "checkpoint.pt")
