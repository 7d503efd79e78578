"""Tests of names, directions and units of metrics."""

import re
from pathlib import Path

import numpy as np
import pytest

from dml_core.config import resolve_trial_config
from dml_core.config.image_changes import is_of_changed_images
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.studies.metrics import (
    TRAIN_METRICS,
    is_higher_better,
    list_metrics,
    match_star,
    unit_of,
)

LOSSES = Path(__file__).parents[3] / "dml_core" / "losses"

EVERYTHING = {
    "data.continuous_labels": ["rotation"],
    "evaluation.binary": True,
    "evaluation.match_rates": [0.1, 0.00001],
    "evaluation.recall_at": [1, 3],
    "evaluation.label_at": [2],
    "evaluation.ndcg_at": [3],
    "evaluation.synthetic_points": 2,
    "evaluation.truncate_at": [2, 4],
}


@pytest.mark.parametrize("layer", [{}, EVERYTHING, {"evaluation.clustering": False}])
def test_the_names_are_those_that_an_evaluation_gives(layer):
    config = resolve_trial_config(layer)
    random = np.random.default_rng(0)
    numbers = evaluate_embeddings(
        random.normal(size=(24, 4)),
        np.repeat(np.arange(4), 6),
        config=config.evaluation,
        metric="cosine",
        continuous=random.normal(size=(24, 1)) if config.data.continuous_labels else None,
    )
    given = [name for name in numbers if not name.startswith("num_")]
    assert list_metrics(config, "test") == given


def test_metrics_of_changed_images_are_named_by_change_and_amount():
    layer = {"evaluation.occlusion": [0.25], "evaluation.corruptions": ["blur"]}
    names = list_metrics(resolve_trial_config(layer), "test")
    assert "occluded_center_0.25_recall_at_1" in names
    assert "occluded_boundary_0.25_map_at_r" in names
    assert "corrupted_blur_3_recall_at_1" in names
    assert not any("nmi" in name for name in names if is_of_changed_images(name))


def test_validation_omits_expensive_metrics():
    names = list_metrics(resolve_trial_config(EVERYTHING), "validation")
    assert names == [
        "recall_at_1", "recall_at_3", "r_precision", "map_at_r",
        "synthetic_recall_at_1", "synthetic_recall_at_3", "mean_label_distance_at_2", "ndcg_at_3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "name", "number"),
    [
        ("ndcg_at_*", "ndcg_at_50", 50),
        ("occluded_center_*_recall_at_1", "occluded_center_0.25_recall_at_1", 0.25),
        ("occluded_center_*_recall_at_1", "occluded_boundary_0.25_recall_at_1", None),
        ("corrupted_blur_*_recall_at_1", "corrupted_blur_3_recall_at_1", 3),
        ("fnmr_at_fmr_*", "fnmr_at_fmr_0.00001", 0.00001),
        ("recall_at_*", "binary_recall_at_1", None),
        ("recall.at_*", "recall_at_1", None),
    ],
)
def test_a_star_stands_for_a_number(pattern, name, number):
    assert match_star(pattern, name) == number


@pytest.mark.parametrize("path", sorted(LOSSES.glob("*.py")), ids=lambda path: path.stem)
def test_every_diagnostic_of_a_loss_is_a_name_that_a_figure_may_use(path):
    # What has a row for each class is no number of an epoch.
    tables = {"hardest_distances", "hardest_classes"}
    named = set(re.findall(r'^ {12,16}"([a-z_]+)": ', path.read_text(), re.MULTILINE))
    named |= set(re.findall(r'diagnostics\["([a-z_]+)"\]', path.read_text()))
    assert named - tables <= set(TRAIN_METRICS)


def test_diagnostics_are_looked_for_where_they_are():
    found = re.findall(r'"([a-z_]+)": ', (LOSSES / "expansion.py").read_text())
    assert "synthetic_fraction" in found


@pytest.mark.parametrize("metric", ["cost.step_seconds", "cost.memory_mib", "train.loss"])
def test_less_cost_and_less_loss_are_better(metric):
    assert not is_higher_better(metric)


def test_of_scores_only_distances_and_missed_pairs_are_better_when_lower():
    assert is_higher_better("test.recall_at_1")
    assert not is_higher_better("test.fnmr_at_fmr_0.001")
    assert not is_higher_better("test.mean_label_distance_at_5")


def test_a_difference_that_is_not_zero_is_not_shown_as_zero():
    memory = unit_of("cost.memory_mib")
    # 96 KiB are 0.09375 MiB; 9 KiB would be 0.0 with one digit.
    assert memory.show_difference(-0.09375) == "-0.1"
    assert memory.show_difference(-0.00879) == "-0.009"
    assert memory.show(0.0) == "0.0"
    # Shares keep their digits: a point has tenths.
    assert unit_of("test.recall_at_1").show_difference(0.0001) == "+0.0"
