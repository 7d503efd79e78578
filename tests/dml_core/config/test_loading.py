import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.config import ConfigError, TrialConfig, parse_overrides, resolve_trial_config
from dml_core.config.loading import (
    flatten,
    load_project_config,
    load_trial_config,
    to_flat_dict,
    unflatten,
)


def problems_of(*layers):
    with pytest.raises(ConfigError) as caught:
        resolve_trial_config(*layers)
    return caught.value.problems


def test_later_layers_win():
    config = resolve_trial_config({"loss.alpha": 8}, {"loss.alpha": 16}, {"seed": 3})
    assert (config.loss.alpha, config.seed) == (16, 3)


def test_exponent_without_a_dot_is_a_number():
    config = resolve_trial_config(parse_overrides(["optimizer.learning_rate=1e-4"]))
    assert config.optimizer.learning_rate == 1e-4


def test_exponent_in_a_file_is_a_number(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("optimizer: {learning_rate: 5e-3, weight_decay: 1E-5}\n")
    optimizer = load_trial_config(path).optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay) == (5e-3, 1e-5)


def test_choosing_another_loss_drops_the_parameters_of_the_previous_one():
    lower = {"loss.name": "arcface", "loss.margin": 0.9, "loss.proxy_ratio": 0.5}
    config = resolve_trial_config(lower, {"loss.name": "triplet"})
    assert config.loss.margin == 0.2


def test_choosing_another_loss_keeps_what_both_inherit():
    lower = {"loss.name": "arcface", "loss.margin": 0.9, "loss.proxy_ratio": 0.5}
    assert resolve_trial_config(lower, {"loss.name": "proxy_nca"}).loss.proxy_ratio == 0.5


def test_choosing_another_sampler_keeps_the_batch_size():
    lower = {"sampler.batch_size": 64, "sampler.class_ratio": 0.1}
    sampler = resolve_trial_config(lower, {"sampler.name": "shuffled"}).sampler
    assert to_flat_dict(sampler) == {"batch_size": 64, "name": "shuffled"}


def test_knob_of_another_loss_is_refused():
    (problem,) = problems_of({"loss.name": "triplet", "loss.alpha": 3})
    assert problem.startswith("loss.alpha is not a known parameter of loss.name=triplet.")


def test_all_problems_are_reported_at_once():
    problems = problems_of(
        {
            "loss.name": "triplet",
            "loss.margn": 0.1,
            "loss.margin": -1,
            "seed": "zero",
            "model.pooling": "average",
            "nonsense": 1,
        }
    )
    text = "\n".join(problems)
    assert len(problems) == 5
    assert "loss.margn is not a known parameter" in text
    assert "Did you mean 'loss.margin'?" in text
    assert "loss.margin must be >= 0.0. Got -1 (int)." in text
    assert "seed must be a whole number. Got 'zero' (str)." in text
    assert "model.pooling must be one of 'avg', 'max', 'avg+max', 'cls'" in text
    assert "Got 'average' (str)." in text
    assert "nonsense is not a known parameter." in text


def test_unknown_loss_lists_the_known_and_the_nearest():
    (problem,) = problems_of({"loss.name": "proxy_ancor"})
    assert "Got 'proxy_ancor'. Did you mean 'proxy_anchor'?" in problem
    assert "multi_similarity" in problem


def test_two_ways_to_shape_a_batch_are_refused():
    (problem,) = problems_of({"sampler.class_ratio": 0.1, "sampler.samples_per_class": 4})
    assert "Got class_ratio=0.1, samples_per_class=4. Set the others to null." in problem


def test_parts_that_do_not_fit_are_all_named():
    problems = problems_of({"loss.name": "log_ratio", "loss.anchors": "heads", "data.fold": 2})
    assert len(problems) == 4
    assert any("data.fold=2 and data.folds=1" in problem for problem in problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss: [1, 2", "is not valid YAML at line 1"),
        ("loss: {name: triplet, name: arcface}", "the key 'name' occurs twice"),
        ("- 1\n- 2\n", "must be a mapping of names. Got list."),
        ("seed: !!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("? [a, b]\n: 1\n", "is not valid YAML"),
        ("? {a: b}\n: 1\n", "is not valid YAML"),
    ],
)
def test_files_that_are_no_params_are_refused(tmp_path, text, message):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="problem") as caught:
        load_trial_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_file_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml has 1 problem.*\n.*does not exist"):
        load_trial_config(tmp_path / "absent.yaml")


def test_override_with_nothing_behind_it_is_an_empty_text():
    assert parse_overrides(["data.class_column=", "sampler.class_ratio=null"]) == {
        "data.class_column": "",
        "sampler.class_ratio": None,
    }


def test_override_without_equals_sign_is_refused():
    with pytest.raises(ConfigError, match=r"'loss.alpha' must have the form key=value"):
        parse_overrides(["loss.alpha"])


def test_value_below_a_value_is_refused():
    with pytest.raises(ConfigError, match="seed"):
        resolve_trial_config({"seed": 1, "seed.deep": 2})


def test_configuration_survives_flattening():
    config = TrialConfig()
    assert resolve_trial_config(to_flat_dict(config)) == config


def test_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        TrialConfig().seed = 3


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=5,
)
_keys = st.sampled_from([*to_flat_dict(TrialConfig()), "loss", "data.x", "", ".", "a..b"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(_keys, _values, max_size=4))
def test_any_values_give_a_configuration_or_a_clean_error(layer):
    try:
        resolve_trial_config(layer)
    except ConfigError as error:
        assert error.problems  # noqa: PT017


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.integers() | st.dictionaries(st.text("xyz", min_size=1), st.integers(), min_size=1),
    )
)
def test_unflatten_undoes_flatten(nested):
    assert unflatten(flatten(nested)) == nested


@pytest.mark.parametrize(
    "address", ["bucket/prefix", "s3://ann:hunter2@bucket", "s3://bucket/a?key=hunter2", "s3://"]
)
def test_an_address_with_credentials_or_without_a_scheme_is_refused_without_repeating_it(
    tmp_path, address
):
    path = tmp_path / "params.yaml"
    path.write_text(f"sweep: {{storage: '{address}'}}")
    with pytest.raises(ConfigError, match=r"sweep\.storage must be empty, or an address") as caught:
        load_project_config(path)
    assert "hunter2" not in str(caught.value)
    for good in ("", "s3://bucket/a-b.c/d_e", "gs://bucket"):
        path.write_text(f"sweep: {{storage: '{good}'}}")
        assert load_project_config(path).pipeline.sweep.storage == good
