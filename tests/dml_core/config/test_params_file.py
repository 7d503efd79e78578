from pathlib import Path

import pytest

from dml_core.config import ConfigError, TrialConfig, load_params
from dml_core.config.loading import load_project_config, to_flat_dict
from dml_core.config.pipeline import PipelineConfig

PARAMS = Path(__file__).parents[3] / "params.yaml"


def test_params_file_lists_exactly_the_keys_of_the_models():
    config = load_project_config(PARAMS)
    keys = set(to_flat_dict(config.trial)) | set(to_flat_dict(config.pipeline))
    assert set(load_params(PARAMS)) == keys


def test_params_file_holds_the_defaults():
    config = load_project_config(PARAMS)
    assert config.trial == TrialConfig()
    assert config.pipeline == PipelineConfig()


def test_problems_of_both_parts_are_reported_together(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("seed: -1\nray: {cpus_per_trial: 0, adress: auto}\n")
    with pytest.raises(ConfigError, match="has 3 problem") as caught:
        load_project_config(path)
    assert "ray.adress is not a known parameter. Did you mean 'ray.address'?" in str(caught.value)


@pytest.mark.parametrize("section", list(PipelineConfig.model_fields))
def test_every_field_of_the_pipeline_says_what_it_means(section):
    model = type(PipelineConfig.model_fields[section].default)
    assert all(field.description for field in model.model_fields.values())


@pytest.mark.parametrize("section", list(TrialConfig.model_fields))
def test_every_field_says_what_it_means(section):
    from dml_core.config.loading import _classes_of

    field = TrialConfig.model_fields[section]
    models = list(_classes_of(field.annotation)) or [type(field.default)]
    undocumented = [
        f"{model.__name__}.{name}"
        for model in models
        for name, inner in getattr(model, "model_fields", {}).items()
        if not inner.description
    ]
    assert undocumented == []
    assert field.description
