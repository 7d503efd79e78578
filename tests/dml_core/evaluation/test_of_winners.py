from dml_core.data.prepared import open_development
from dml_core.evaluation.of_winners import evaluate_winners
from dml_core.studies.metric_names import list_metrics
from dml_core.training.checkpoint import save_checkpoint
from dml_core.training.trial import run_trial
from tests.references.tiny_trials import prepare_tiny, tiny_config


def test_winners_are_scored_by_all_that_their_configuration_asks_for(tmp_path):
    data = prepare_tiny(tmp_path / "prepared")
    config = tiny_config(
        tmp_path / "prepared",
        training__epochs=1,
        evaluation__occlusion=[0.3, 0.5],
        evaluation__synthetic_points=2,
    )
    path = tmp_path / "winners" / "small-arm-seed4" / "checkpoint.pt"
    run_trial(config, data, on_epoch_end=lambda _, state: save_checkpoint(state, path))
    (winner,) = evaluate_winners(tmp_path / "winners", workers=1)
    assert (winner.arm, winner.seed) == ("small-arm", 4)
    assert {"occluded_center_0.3_recall_at_1", "occluded_boundary_0.5_map_at_r"} <= set(
        winner.scores
    )
    assert "synthetic_recall_at_1" in winner.scores
    assert not any("occluded" in name and "synthetic" in name for name in winner.scores)
    given = [name for name in winner.scores if not name.startswith("num_")]
    assert list_metrics(config, "test") == given
    assert open_development(config.data).info.content_hash == winner.data_hash
