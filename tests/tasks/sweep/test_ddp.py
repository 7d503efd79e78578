"""A study's trial over two workers of a real Ray cluster, one of which is killed."""

import threading
from contextlib import contextmanager

import psutil
import pytest

from dml_core.data.prepared import open_development
from dml_core.training.in_folder import train_in_folder
from dml_core.trials.journal import read_epochs
from tasks.sweep.run import run_sweep
from tests.references.tiny_studies import tiny_pipeline, tiny_study
from tests.references.tiny_trials import prepare_tiny, tiny_config

pytestmark = pytest.mark.integration

EPOCHS = 12
"""Enough for the kill to come in the middle."""

ONE_TRIAL = """
question: Does it train?
arms: {only: {model.embedding_dim: 8}}
seeds: [0]
"""


def other_ranks():
    """Processes of this cluster that train as ranks above 0."""
    family = psutil.Process().children(recursive=True)
    return [process for process in family if "ray::RankActor" in " ".join(process.cmdline())]


@contextmanager
def rank_killed_after(folder, *, epochs):
    """Kills a rank above 0 once a trial below the folder has some epochs; yields its process id.

    It looks at the trial's own file, since the driver hears of several short epochs at once.
    """
    killed, is_over = [], threading.Event()

    def watch():
        while not killed and not is_over.wait(0.01):
            files = list(folder.glob("*/epochs.jsonl"))
            if files and len(read_epochs(files[0].parent)) >= epochs:
                (process,) = other_ranks()
                process.kill()
                killed.append(process.pid)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield killed
    is_over.set()
    watcher.join()


def test_a_trial_over_two_workers_trains_as_over_one_and_survives_a_kill(tmp_path):
    prepare_tiny(tmp_path / "prepared")
    config = tiny_config(tmp_path / "prepared", training__epochs=EPOCHS)
    train_in_folder(config, open_development(config.data), tmp_path / "alone")
    study = tiny_study(
        tmp_path / "prepared", tmp_path, ONE_TRIAL, training__epochs=EPOCHS, trial__workers=2
    )
    folder = tmp_path / "results" / ".sweeps" / "tiny"
    trials = tmp_path / "results" / ".trials"
    with rank_killed_after(trials, epochs=2) as killed:
        result = run_sweep(study, tiny_pipeline(), folder=folder)
    (record,) = result.repeat_records
    assert (record.status, record.resumed, len(killed)) == ("finished", 1, 1)
    losses = [
        [epoch["train_loss"] for epoch in read_epochs(each)]
        for each in (tmp_path / "alone", trials / record.key)
    ]
    assert len(losses[0]) == EPOCHS
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert other_ranks() == []
