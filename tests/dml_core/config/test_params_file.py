from pathlib import Path

import pytest

from dml_core.config import TrialConfig, load_params, load_trial_config
from dml_core.config.loading import to_flat_dict

PARAMS = Path(__file__).parents[3] / "params.yaml"


def test_params_file_lists_exactly_the_keys_of_the_models():
    assert set(load_params(PARAMS)) == set(to_flat_dict(load_trial_config(PARAMS)))


def test_params_file_holds_the_defaults():
    assert load_trial_config(PARAMS) == TrialConfig()


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
