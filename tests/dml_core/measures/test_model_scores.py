"""Tests of the scores of trained and untrained models."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dml_core.config.image_changes import ImageChange
from dml_core.config.trial import EvaluationConfig
from dml_core.data.prepared import open_development, open_test
from dml_core.evaluation.evaluate import measure_spread
from dml_core.evaluation.spreading import split_rows
from dml_core.measures.model_scores import (
    embed_untrained,
    embed_with_checkpoint,
    evaluate_checkpoint,
    evaluate_raw_pixels,
    evaluate_untrained_features,
    evaluate_winner,
    load_trained_model,
)
from dml_core.measures.results import list_winners
from dml_core.measures.untrained import BARE_FEATURES, PIXELS
from dml_core.models.embedding_model import EmbeddingModel
from dml_core.studies.metrics import list_metrics
from dml_core.training.checkpoint import load_checkpoint, save_checkpoint
from dml_core.training.trial import run_trial
from tests.references.tiny_trials import prepare_tiny, tiny_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny model's checkpoint, its configuration and its last report."""
    root = tmp_path_factory.mktemp("prepared")
    prepare_tiny(root)
    config = tiny_config(root, training__epochs=3, evaluation__recall_at=[1, 2])
    path = root / "last.pt"
    result = run_trial(
        config,
        open_development(config.data),
        on_epoch_end=lambda _, state: save_checkpoint(state, path),
    )
    return load_checkpoint(path), config, result


def test_validation_scores_are_those_that_training_reported(trained):
    checkpoint, config, result = trained
    images = open_development(config.data).validation
    scores = evaluate_checkpoint(checkpoint, images, evaluation=config.evaluation)
    reported = result.reports[result.best_epoch - 1].validation
    assert scores["map_at_r"] == pytest.approx(reported["map_at_r"], abs=1e-6)
    assert scores["recall_at_1"] == pytest.approx(reported["recall_at_1"], abs=1e-6)


def test_test_classes_are_evaluated_with_every_metric(trained):
    checkpoint, config, _ = trained
    images, _ = open_test(config.data)
    evaluation = EvaluationConfig(binary=True, occlusion=(0.9,), kmeans_iterations=5)
    scores = evaluate_checkpoint(checkpoint, images, evaluation=evaluation)
    assert {"nmi", "pair_f1", "binary_recall_at_1", "occluded_boundary_0.9_map_at_r"} <= set(scores)
    # Nearly everything is black, so little can be recognised.
    assert scores["occluded_center_0.9_recall_at_1"] < scores["recall_at_1"]


def test_trained_model_gives_unit_embeddings_and_stays_still(trained):
    checkpoint, _, _ = trained
    model = load_trained_model(checkpoint)
    images = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    embeddings = model(images)
    assert torch.equal(embeddings, model(images))
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(5))


def test_baselines_need_no_training(trained):
    _, config, _ = trained
    images = open_development(config.data).validation
    pixels = evaluate_raw_pixels(images, config)
    features = evaluate_untrained_features(images, config)
    assert pixels["num_queries"] == features["num_queries"] == len(images)
    assert pixels["recall_at_1"] != features["recall_at_1"]


def test_spread_is_zero_only_when_all_are_alike():
    assert measure_spread(np.ones((10, 4), dtype=np.float32)) == 0
    assert measure_spread(np.zeros((10, 4), dtype=np.float32)) == 0
    # Two opposite points: each lies one length from the centre.
    assert measure_spread(np.array([[1.0, 0.0], [-1.0, 0.0]], dtype=np.float32)) == 1
    assert np.isnan(measure_spread(np.array([[np.nan, 1.0]], dtype=np.float32)))


def test_activations_of_frozen_blocks_are_cached(tmp_path, monkeypatch):
    prepare_tiny(tmp_path)
    config = tiny_config(tmp_path, training__epochs=1, trunk__train="from:stage3")
    states = []
    run_trial(
        config,
        open_development(config.data),
        on_epoch_end=lambda _, state: states.append(state),
    )
    images, info = open_test(config.data)
    plain = embed_with_checkpoint(states[0], images)
    kept = embed_with_checkpoint(states[0], images, content_hash=info.content_hash)
    # Activations are kept in half precision.
    np.testing.assert_allclose(kept, plain, atol=3e-3)
    monkeypatch.setattr(EmbeddingModel, "frozen_activations", None)
    again = embed_with_checkpoint(states[0], images, content_hash=info.content_hash)
    np.testing.assert_array_equal(again, kept)


def test_winners_are_scored_by_every_configured_metric(tmp_path):
    data = prepare_tiny(tmp_path / "prepared")
    config = tiny_config(
        tmp_path / "prepared",
        training__epochs=1,
        evaluation__occlusion=[0.3, 0.5],
        evaluation__corruptions=["crop", "jpeg"],
        evaluation__severities=[2],
        evaluation__synthetic_points=2,
    )
    path = tmp_path / "winners" / "small-arm-seed4" / "checkpoint.pt"
    run_trial(config, data, on_epoch_end=lambda _, state: save_checkpoint(state, path))
    winner = evaluate_winner(*list_winners(tmp_path / "winners"))
    assert (winner.arm, winner.seed) == ("small-arm", 4)
    assert {"occluded_center_0.3_recall_at_1", "occluded_boundary_0.5_map_at_r"} <= set(
        winner.scores
    )
    assert {"corrupted_crop_2_recall_at_1", "corrupted_jpeg_2_map_at_r"} <= set(winner.scores)
    assert "synthetic_recall_at_1" in winner.scores
    assert not any("ed_" in name and "synthetic" in name for name in winner.scores)
    given = [name for name in winner.scores if not name.startswith("num_")]
    assert list_metrics(config, "test") == given
    assert open_development(config.data).info.content_hash == winner.data_hash


def test_a_range_of_images_has_the_bits_of_the_whole(tmp_path):
    data = prepare_tiny(tmp_path)
    config = tiny_config(tmp_path, training__epochs=1, evaluation__batch_size=16)
    states = []
    run_trial(config, data, on_epoch_end=lambda _, state: states.append(state))
    images, _ = open_test(config.data)
    whole = embed_with_checkpoint(states[0], images)
    parts = split_rows(len(images), part_size=16, multiple=config.evaluation.batch_size)
    assert len(parts) > 1
    found = [embed_with_checkpoint(states[0], images, rows=rows) for rows in parts]
    np.testing.assert_array_equal(np.concatenate(found), whole)
    # What a corruption draws depends on the image's index.
    change = ImageChange("corrupted", "noise", 3)
    whole = embed_with_checkpoint(states[0], images, change=change)
    found = [embed_with_checkpoint(states[0], images, change=change, rows=rows) for rows in parts]
    np.testing.assert_array_equal(np.concatenate(found), whole)
    for name in (PIXELS, BARE_FEATURES):
        divided = [embed_untrained(name, images, config, rows=rows) for rows in parts]
        expected = embed_untrained(name, images, config)
        np.testing.assert_array_equal(np.concatenate(divided), expected)


def test_a_winner_of_other_data_is_refused(tmp_path):
    data = prepare_tiny(tmp_path / "prepared")
    config = tiny_config(tmp_path / "prepared", training__epochs=1)
    path = tmp_path / "winners" / "arm-seed0" / "checkpoint.pt"
    run_trial(config, data, on_epoch_end=lambda _, state: save_checkpoint(state, path))
    prepare_tiny(tmp_path / "other", data__draw_seed=5)
    elsewhere = tiny_config(tmp_path / "other", data__draw_seed=5).data
    (winner,) = list_winners(tmp_path / "winners")
    with pytest.raises(ValueError, match="arm-seed0 was trained on other data"):
        evaluate_winner(replace(winner, data=elsewhere))
