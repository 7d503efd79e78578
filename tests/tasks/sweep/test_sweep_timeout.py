"""A sweep whose time is over, on Ray clusters of its own."""

from types import SimpleNamespace

import psutil
import pytest

from dml_core.trials.journal import Journal
from dml_core.trials.store import LocalStore
from tasks.budget import BudgetSpent
from tasks.guardian import guarded_folder
from tasks.sweep import tune as ray_hooks
from tasks.sweep.conductor import Conductor, ListedTrials, SearchThenRepeats, SweepEvents
from tasks.sweep.progress import ProgressTracker
from tasks.sweep.run import run_sweep
from tasks.sweep.tune import LedStopper, SweepTimedOut
from tests.references.tiny_studies import tiny_pipeline, tiny_study
from tests.references.tiny_trials import prepare_tiny

pytestmark = pytest.mark.integration
STUDY = """
question: Does a wider embedding help?
arms: {small: {model.embedding_dim: 4}, large: {model.embedding_dim: 8}}
seeds: [0]
"""


def test_a_sweep_stops_when_its_time_is_over_and_goes_on_later(tmp_path, monkeypatch):
    prepare_tiny(tmp_path / "prepared")
    study = tiny_study(tmp_path / "prepared", tmp_path, STUDY, training__epochs=40)
    folder = tmp_path / "results/.sweeps/tiny"
    guarded_folder()  # begins the guard, which lasts for as long as this process
    before = set(psutil.Process().children(recursive=True))
    # The clock stands still until the second epoch of a trial, and then an hour is over.
    now = [0.0]
    monkeypatch.setattr(ray_hooks, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def pass_an_hour(_, epoch):
        now[0] = 3600.0 if epoch["epoch"] >= 2 else now[0]

    limited = tiny_pipeline(sweep__timeout_seconds=60)
    with pytest.raises(
        SweepTimedOut, match=r"^sweep\.timeout_seconds=60 is over, .* The same command resumes"
    ):
        run_sweep(study, limited, folder=folder, on_epoch=pass_an_hour)
    left = set(psutil.Process().children(recursive=True)) - before
    assert psutil.wait_procs(left, timeout=60)[1] == []
    assert not (tmp_path / "results/tiny").exists()
    store = LocalStore(tmp_path / "results/.trials")
    kept = {key: Journal(store, key).epochs() for key in store.list_keys()}
    assert max(map(len, kept.values())) >= 2
    result = run_sweep(study, tiny_pipeline(), folder=folder)
    assert {record.status for record in result.repeat_records} == {"finished"}
    assert any(record.resumed for record in result.repeat_records)
    for name, epochs in kept.items():
        assert Journal(store, name).epochs()[: len(epochs)] == epochs


def test_a_sweep_without_any_time_left_starts_no_cluster(tmp_path):
    prepare_tiny(tmp_path / "prepared")
    study = tiny_study(tmp_path / "prepared", tmp_path, STUDY)
    folder = tmp_path / "results/.sweeps/tiny"
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(BudgetSpent, match=r"answer: 0 of 2 trainings are finished"):
        run_sweep(study, tiny_pipeline(), folder=folder, seconds=0)
    assert set(psutil.Process().children(recursive=True)) == before
    assert not (tmp_path / "results/tiny").exists()


def test_a_budget_that_ends_while_trials_run_stops_them_all():
    """Through the same door as sweep.timeout_seconds, of which the first test runs a sweep."""

    def check_budget():
        raise BudgetSpent("not enough time")

    conductor = Conductor(
        SearchThenRepeats(ListedTrials([]), lambda _: []), None,
        tracker=ProgressTracker("tiny", total=2), events=SweepEvents(),
        max_failed=0, max_restarts=0,
    )  # fmt: skip
    assert LedStopper(conductor, check_budget=check_budget).stop_all()
    with pytest.raises(BudgetSpent):
        conductor.raise_error()
