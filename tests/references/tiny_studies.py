"""Studies of a few tiny trials, for tests of sweeps."""

from pathlib import Path

from dml_core.config import resolve_trial_config
from dml_core.config.loading import ProjectConfig
from dml_core.config.pipeline import PipelineConfig
from dml_core.studies.loading import load_study
from dml_core.studies.resolved import ResolvedStudy
from tests.references.tiny_trials import TINY

TWO_ARMS = """
question: Does a wider embedding help?
arms:
  small: {model.embedding_dim: 4}
  large: {model.embedding_dim: 8}
nuisance: {optimizer.learning_rate: {log_uniform: [0.001, 0.01]}}
trials_per_arm: 2
edge_rounds: 0
seeds: [0, 1]
"""


def tiny_pipeline(**knobs: object) -> PipelineConfig:
    """Returns a pipeline for this machine; keyword names are section__field."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in knobs.items():
        section, _, field = key.partition("__")
        sections.setdefault(section, {})[field] = value
    return PipelineConfig.model_validate(sections)


def tiny_study(
    prepared: Path, folder: Path, text: str = TWO_ARMS, *, name: str = "tiny", **knobs: object
) -> ResolvedStudy:
    """Returns the study of a YAML text over tiny trials; keyword names have __ for the dot.

    Args:
        prepared: where the tiny dataset was prepared.
        folder: gets the study's file.
        text: the study.
        name: the study's name.
        **knobs: other values of the trials.
    """
    changes = {key.replace("__", "."): value for key, value in knobs.items()}
    params = {**TINY, "data.prepared_root": str(prepared), **changes}
    project = ProjectConfig(resolve_trial_config(params), PipelineConfig(), params, {})
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return load_study(path, project)
