"""A tiny study with made-up trials, for tests of the record."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_core.config.loading import load_project_config
from dml_core.studies.loading import load_study
from dml_core.studies.resolved import ResolvedStudy
from dml_core.training.report import EpochReport
from dml_core.trials.spec import TrialRecord, TrialSpec
from dml_core.trials.store import LocalStore
from tasks.tracking.identity import SweepFacts
from tests.references.tiny_trials import TINY

STUDY = """
question: Does a larger embedding help?
arms:
  dim_8: {model.embedding_dim: 8}
  dim_16: {model.embedding_dim: 16}
fixed: {loss.name: triplet}
nuisance: {optimizer.learning_rate: {log_uniform: [0.0001, 0.01]}}
trials_per_arm: 2
seeds: [0, 1]
"""

FACTS = SweepFacts(datasets={"glyphs": ("c0ffee", "5b117")}, code="abc", git_commit="1234567")


def make_study(folder: Path) -> ResolvedStudy:
    """Returns a study of two arms, two tries each, that was read from a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dimension.yaml").write_text(STUDY, encoding="utf-8")
    (folder / "params.yaml").write_text("seed: 0\n", encoding="utf-8")
    overrides = [f"{key}={value}" for key, value in TINY.items() if "embedding" not in key]
    overrides = [text.replace("None", "null") for text in overrides]
    project = load_project_config(
        folder / "params.yaml", [*overrides, f"data.prepared_root={folder / 'prepared'}"]
    )
    return load_study(folder / "dimension.yaml", project)


def make_report(epoch: int, *, offset: float = 0.0) -> dict[str, object]:
    """Returns an epoch's report as the driver gets it."""
    report = EpochReport(
        epoch=epoch,
        num_epochs=3,
        train_loss=1.0 / epoch + offset,
        active_fraction=None,
        diagnostics={"num_triplets/ä": 3.0},
        learning_rates={"trunk": 0.001, "head": 0.002},
        validation={"recall_at_1": 0.1 * epoch + offset, "map_at_r": 0.05 * epoch},
    )
    return asdict(report)


def make_record(spec: TrialSpec, *, status: str = "finished", reason: str = "") -> TrialRecord:
    """Returns how a trial of three epochs ended."""
    return TrialRecord(
        spec=spec,
        status=status,
        reason=reason,
        epochs=3,
        best_epoch=3,
        score=0.15,
        validation={"map_at_r": 0.15},
        key=spec.trial_id,
        train_seconds=1.5,
    )


def make_store(folder: Path) -> dict[str, Any]:
    """Returns the options of a recorder that names journals by trial ids."""
    return {"store": LocalStore(folder), "key_of": lambda spec: spec.trial_id}
