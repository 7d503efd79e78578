import logging
import os
import shutil
import signal

import psutil

from dml_core.data.prepared import open_development
from dml_core.measures.model_scores import evaluate_winners
from dml_core.studies.metrics import list_metrics
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


def kill_the_pool():
    for process in psutil.Process().children():
        if any("spawn_main" in part for part in process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
            yield process.pid


def test_a_killed_process_of_the_pool_costs_no_score(tmp_path, caplog):
    data = prepare_tiny(tmp_path / "prepared")
    config = tiny_config(tmp_path / "prepared", training__epochs=1)
    folder = tmp_path / "winners"
    path = folder / "arm-seed0" / "checkpoint.pt"
    run_trial(config, data, on_epoch_end=lambda _, state: save_checkpoint(state, path))
    # More than two processes are given at once, so that some are left when they are killed.
    for seed in range(1, 6):
        shutil.copytree(folder / "arm-seed0", folder / f"arm-seed{seed}")
    killed, told = [], []

    def on_progress(done, total):
        told.append((done, total))
        if done == 1:
            killed.extend(kill_the_pool())

    with caplog.at_level(logging.WARNING):
        winners = list(evaluate_winners(folder, workers=2, on_progress=on_progress))
    assert len(killed) == 2
    assert [winner.seed for winner in winners] == [0, 1, 2, 3, 4, 5]
    assert told == [(done, 6) for done in range(1, 7)]
    assert "one of 2 evaluation processes was killed" in caplog.text
    assert "winners are evaluated one at a time" in caplog.text
    assert all(winner.scores == winners[0].scores for winner in winners)
