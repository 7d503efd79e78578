"""Which sweep a run belongs to, and its params, metrics and tags."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name, _validate_param_name

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from tasks.tracking.identity import (
    SweepFacts,
    SweepIdentity,
    is_same_param,
    keep_numbers,
    make_trial_key,
    to_epoch_metrics,
    to_name,
    to_params,
    to_tags,
)
from tests.references.recorded_sweeps import FACTS, make_report, make_study


def test_another_state_of_data_code_or_libraries_is_another_sweep(tmp_path):
    study = make_study(tmp_path)
    known = SweepIdentity.of(study, FACTS)
    assert SweepIdentity.of(study, replace(FACTS)).key == known.key
    # A commit that changes nothing of the training code changes no number.
    assert SweepIdentity.of(study, replace(FACTS, git_commit="7654321")).key == known.key
    others = [
        replace(FACTS, datasets={"glyphs": ("other", "5b117")}),
        replace(FACTS, code="other"),
        replace(FACTS, libraries="torch 0.1"),
        SweepFacts(),
    ]
    keys = {SweepIdentity.of(study, facts).key for facts in others}
    assert len(keys) == len(others)
    assert known.key not in keys


def test_the_same_id_with_another_configuration_is_another_trial(tmp_path):
    study = make_study(tmp_path)
    one = study.make_search_spec("dim_8", 0, {"optimizer.learning_rate": 0.001})
    other = study.make_search_spec("dim_8", 0, {"optimizer.learning_rate": 0.002})
    assert one.trial_id == other.trial_id
    key = make_trial_key(one.trial_id, one.config)
    assert key == make_trial_key(one.trial_id, one.config.model_copy())
    assert key != make_trial_key(other.trial_id, other.config)
    assert key != make_trial_key("another", one.config)


def test_every_knob_is_a_param_under_its_own_key():
    params = to_params(TrialConfig())
    assert list(params) == list(to_flat_dict(TrialConfig()))
    assert params["seed"] == "0"
    assert params["loss.name"] == "proxy_anchor"


def test_seven_and_seven_point_nought_are_the_same_param():
    assert is_same_param("7", "7.0")
    assert is_same_param("true", "true")
    assert not is_same_param("7", "8")
    assert not is_same_param("seven", "7")


def test_an_epoch_has_the_same_names_as_everywhere():
    metrics = to_epoch_metrics(make_report(2))
    assert metrics["train.loss"] == 0.5
    assert metrics["validation.recall_at_1"] == 0.2
    assert metrics["train.learning_rate.trunk"] == 0.001
    assert "train.active_fraction" not in metrics


def test_tables_of_an_epoch_are_no_metrics():
    report = make_report(2)
    tables = {"hardest_distances": [[0.0, 0.5], [0.5, 0.0]]}
    assert to_epoch_metrics({**report, "tables": tables}) == to_epoch_metrics(report)


def test_counts_and_values_that_are_no_numbers_are_left_out():
    values = {"test.num_queries": 5, "a": None, "b": "x", "c": np.float32(0.5), "d": 1}
    assert keep_numbers(values) == {"c": 0.5, "d": 1.0}


@given(st.text())
def test_any_name_from_the_data_becomes_one_that_mlflow_takes(text):
    name = to_name(text)
    _validate_metric_name(name)
    _validate_param_name(name)


def test_names_that_are_fine_stay():
    assert to_name("validation.recall_at_1") == "validation.recall_at_1"


def test_a_long_tag_is_cut_and_a_missing_one_left_out():
    tags = to_tags({"reason": "x" * 9000, "none": None, "seed": 3})
    assert len(tags["reason"]) == 8000
    assert tags["reason"].endswith("…")
    assert tags["seed"] == "3"
    assert "none" not in tags
