import numpy as np
import pytest

from dml_core.config import resolve_trial_config
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.studies.metric_names import is_higher_better, list_metrics

EVERYTHING = {
    "data.continuous_labels": ["rotation"],
    "evaluation.binary": True,
    "evaluation.recall_at": [1, 3],
    "evaluation.label_at": [2],
    "evaluation.ndcg_at": [3],
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


def test_occluded_metrics_are_named_by_place_and_size():
    config = resolve_trial_config({"evaluation.occlusion": [0.25]})
    names = list_metrics(config, "test")
    assert "occluded_center_0.25_recall_at_1" in names
    assert "occluded_boundary_0.25_map_at_r" in names
    assert not any("nmi" in name for name in names if name.startswith("occluded"))


def test_validation_leaves_out_what_is_costly():
    names = list_metrics(resolve_trial_config(EVERYTHING), "validation")
    assert names == [
        "recall_at_1", "recall_at_3", "r_precision", "map_at_r",
        "mean_label_distance_at_2", "ndcg_at_3",
    ]  # fmt: skip


def test_only_distances_are_better_when_lower():
    assert is_higher_better("test.recall_at_1")
    assert not is_higher_better("test.mean_label_distance_at_5")
