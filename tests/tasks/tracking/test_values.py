import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name, _validate_param_name

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from tasks.tracking.values import (
    is_same_param,
    keep_numbers,
    to_epoch_metrics,
    to_name,
    to_params,
    to_tags,
)
from tests.references.recorded_sweeps import make_report


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


def test_counts_and_what_is_no_number_are_left_out():
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
