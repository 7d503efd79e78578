"""Studies written to a folder and read back, for tests."""

from pathlib import Path

import pytest

from dml_core.config import ConfigError
from dml_core.config.loading import ProjectConfig, load_project_config
from dml_core.studies.arm_checks import TrainingSize
from dml_core.studies.loading import load_study
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.spec import TrialRecord, TrialSpec

LEARNING_RATE = "nuisance: {optimizer.learning_rate: {log_uniform: [1e-4, 1e-2]}}"
TWO_ARMS = f"""
question: Which loss?
arms: {{triplet: {{loss.name: triplet}}, anchor: {{loss.name: proxy_anchor}}}}
{LEARNING_RATE}
trials_per_arm: 3
seeds: [4, 7]
"""


def make_project(folder: Path, params: str = "", *assignments: str) -> ProjectConfig:
    """Writes a params.yaml and loads it with `--set` arguments."""
    path = folder / "params.yaml"
    path.write_text(params, encoding="utf-8")
    return load_project_config(path, assignments)


def read_study(
    folder: Path,
    text: str,
    *assignments: str,
    params: str = "",
    profile: str | None = None,
    size: TrainingSize | None = None,
) -> ResolvedStudy:
    """Writes a study named `asked` and loads it."""
    path = folder / "asked.yaml"
    path.write_text(text, encoding="utf-8")
    project = make_project(folder, params, *assignments)
    return load_study(path, project, profile=profile, size=size)


def problems_of(folder: Path, text: str, *assignments: str, **options: object) -> list[str]:
    """Returns the problems that a study is refused for."""
    with pytest.raises(ConfigError) as caught:
        read_study(folder, text, *assignments, **options)  # type: ignore[arg-type]
    assert caught.value.source.startswith(str(folder / "asked.yaml"))
    return caught.value.problems


def make_record(spec: TrialSpec, score: float | None, status: str = "finished") -> TrialRecord:
    """Returns what a trial left that ended with this score."""
    return TrialRecord(
        spec=spec,
        status=status,  # type: ignore[arg-type]
        reason="" if status == "finished" else f"it {status}",
        epochs=3,
        best_epoch=2,
        score=score,
        validation={} if score is None else {"map_at_r": score},
        key=spec.trial_id,
        train_seconds=1.0,
    )
