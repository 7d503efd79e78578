"""Tests of a training over two processes: it matches one process, and resumes bit for bit."""

import multiprocessing
import os
import signal

import pytest

from dml_core.data.prepared import open_development
from dml_core.training.checkpoint import checkpoint_path, load_checkpoint
from dml_core.training.ddp import WorkerLost
from dml_core.training.ddp_local import local_worker_group
from dml_core.training.in_folder import train_in_folder
from dml_core.trials.journal import read_epochs
from tests.dml_core.training.test_trial import assert_same_checkpoints
from tests.references.tiny_trials import tiny_config

pytestmark = pytest.mark.slow


LOSSES = {
    "proxy ratio": {"loss__proxy_ratio": 0.9},
    # 40 of 48 embeddings of an epoch's three batches: the memory outlives epochs and the kill.
    "memory": {"loss__name": "contrastive", "loss__memory__size": 40},
}


def train(root, folder, knobs, *, workers, on_epoch_end=None):
    config = tiny_config(root, trial__workers=workers, **knobs)
    with local_worker_group(config, folder) as group:
        data = open_development(config.data)
        return train_in_folder(config, data, folder, on_epoch_end=on_epoch_end, group=group)


@pytest.mark.parametrize("knobs", LOSSES.values(), ids=LOSSES)
def test_two_workers_train_as_one_and_resume_bit_for_bit_after_a_kill(tiny_root, tmp_path, knobs):
    alone, whole, broken = (tmp_path / name for name in ("alone", "whole", "broken"))
    train(tiny_root, alone, knobs, workers=1)
    assert train(tiny_root, whole, knobs, workers=2).outcome == "finished"
    for one, two in zip(read_epochs(alone), read_epochs(whole), strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)

    def kill_the_other(report, checkpoint):
        (other,) = multiprocessing.active_children()
        os.kill(other.pid, signal.SIGKILL)

    with pytest.raises(WorkerLost, match="a worker of the trial is gone"):
        train(tiny_root, broken, knobs, workers=2, on_epoch_end=kill_the_other)
    assert [epoch["epoch"] for epoch in read_epochs(broken)] == [1]
    assert not multiprocessing.active_children()
    assert train(tiny_root, broken, knobs, workers=2).outcome == "finished"
    last = [checkpoint_path(folder / "checkpoints", 3) for folder in (whole, broken)]
    assert_same_checkpoints(*last)
    rows = [len(v) for k, v in load_checkpoint(last[0]).loss.items() if k == "memory.embeddings"]
    assert rows == ([40] if "memory" in str(knobs) else [])
    assert [e["train_loss"] for e in read_epochs(broken)] == [
        e["train_loss"] for e in read_epochs(whole)
    ]
    assert not multiprocessing.active_children()
