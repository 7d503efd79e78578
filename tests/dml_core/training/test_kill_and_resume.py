"""Trainings killed with -9 at random moments end with the bits of an undisturbed one."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dml_core.training.checkpoint import checkpoint_path
from dml_core.training.in_folder import train_in_folder
from dml_core.training.report import keep_in_folder
from dml_core.trials.journal import read_epochs
from tests.dml_core.training.test_trial import assert_same_checkpoints
from tests.references.tiny_trials import prepare_tiny, tiny_config

SCRIPT = """
import sys
from pathlib import Path
from dml_core.data.prepared import open_development
from dml_core.training.in_folder import train_in_folder
from tests.references.tiny_trials import tiny_config

config = tiny_config(Path(sys.argv[1]), training__epochs=40)
train_in_folder(config, open_development(config.data), Path(sys.argv[2]))
"""


def start(root, folder):
    command = [sys.executable, "-c", SCRIPT, str(root), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[3], env=environment, start_new_session=True
    )


def wait_for_epoch(process, folder, epoch):
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(read_epochs(folder)) >= epoch:
            return
        time.sleep(0.01)
    assert process.poll() == 0, "the training ended by itself before the kill"


@pytest.mark.slow
def test_a_training_that_is_killed_repeatedly_ends_with_the_same_bits(tiny_root, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(tiny_root, whole).wait(timeout=300) == 0
    chance = random.Random(7)
    kills = 0
    for epoch in (1, 9, 18, 30):
        process = start(tiny_root, broken)
        wait_for_epoch(process, broken, epoch)
        time.sleep(chance.uniform(0, 0.08))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills == 4
    assert start(tiny_root, broken).wait(timeout=300) == 0
    assert_same_checkpoints(
        checkpoint_path(whole / "checkpoints", 40), checkpoint_path(broken / "checkpoints", 40)
    )
    numbers = [
        [(e["epoch"], e["train_loss"], e["validation"]) for e in read_epochs(folder)]
        for folder in (whole, broken)
    ]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) == 40
    results = [json.loads((f / "result.json").read_text()) for f in (whole, broken)]
    assert results[0]["best_score"] == results[1]["best_score"]
    # Nothing half-written is left beside the checkpoints.
    assert len(list((broken / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_kill_while_a_checkpoint_is_written_loses_no_epoch(tmp_path, monkeypatch, place):
    data, config = prepare_tiny(tmp_path), tiny_config(tmp_path, training__epochs=4)
    with monkeypatch.context() as patched:
        patched.setattr("dml_core.training.in_folder.keep_in_folder", killed_at(2, place))
        with pytest.raises(KeyboardInterrupt):
            train_in_folder(config, data, tmp_path / "trial")
    train_in_folder(config, data, tmp_path / "trial")
    assert [epoch["epoch"] for epoch in read_epochs(tmp_path / "trial")] == [1, 2, 3, 4]


def killed_at(epoch, place):
    """Dies before or after it writes the checkpoint of an epoch."""

    def make(folder):
        save = keep_in_folder(folder)

        def save_or_die(report, state):
            if place == "after" or report.epoch != epoch:
                save(report, state)
            if report.epoch == epoch:
                raise KeyboardInterrupt

        return save_or_die

    return make
