"""The hooks pass Tune's events on; the tests call them as Tune does, without a cluster."""

import json
import logging
from contextlib import contextmanager

import pytest
from ray.tune.experiment import Trial

from dml_core.config import TrialConfig
from dml_core.trials.spec import TrialSpec, spec_to_plain
from tasks.machine_faults import DiskFull
from tasks.sweep.job import EPOCHS, TrialJob, job_to_config
from tasks.sweep.tune import LedCallback, LedScheduler, LedSearcher


class Listener:
    """Takes note of what a conductor would hear."""

    is_exhausted = False

    def __init__(self):
        self.heard = []
        self.error = None

    @contextmanager
    def kept_errors(self):
        try:
            yield
        except Exception as error:
            self.error = error

    def report(self, spec, epoch):
        self.heard.append((spec.trial_id, epoch))
        return True

    def lose_worker(self, spec, *, why):
        self.heard.append((spec.trial_id, why))

    def next(self):
        raise OSError("no room")


def make_spec():
    return TrialSpec("a-0", "study", "a", "search", 0, {}, TrialConfig())


class FakeTrial:
    """Has of Tune's trial what the hooks ask for; a real one needs a running job."""

    def __init__(self, folder, error=None, *, trial_id="1", status=Trial.RUNNING):
        self.trial_id = trial_id
        self.status = status
        spec = make_spec()
        job = TrialJob(
            spec=spec_to_plain(spec),
            key="key",
            store=str(folder),
            note=str(folder / "hung.txt"),
            working_folder=str(folder),
            data_version="",
        )
        self.config = job_to_config(job)
        self.error_file = str(folder / "error.txt") if error else None
        if error:
            (folder / "error.txt").write_text(error)


@pytest.fixture
def listener():
    return Listener()


def test_messages_of_a_worker_become_warnings_of_the_driver(listener, tmp_path, caplog):
    epochs = [{"epoch": 2}, {"epoch": 3, "messages": ["the checkpoint is damaged."]}]
    result = {EPOCHS: json.dumps(epochs)}
    with caplog.at_level(logging.WARNING):
        LedScheduler(listener, {"1": make_spec()}).on_trial_result(
            None, FakeTrial(tmp_path), result
        )
    assert caplog.messages == ["trial a-0: the checkpoint is damaged."]
    assert listener.heard == [("a-0", {"epoch": 2}), ("a-0", {"epoch": 3})]


def test_the_death_of_a_worker_reaches_the_conductor_with_the_reason(listener, tmp_path):
    died = FakeTrial(tmp_path, "somewhere\nActorDiedError: it was killed\n")
    (tmp_path / "hung.txt").write_text("no epoch finished within 9 s.")
    LedCallback(listener, {"1": make_spec()}).on_trial_error(0, [], died)
    # The note of a hung worker is no reason for the death of the next one.
    LedCallback(listener, {"1": make_spec()}).on_trial_error(0, [], died)
    assert listener.heard == [
        ("a-0", "no epoch finished within 9 s."),
        ("a-0", "ActorDiedError: it was killed"),
    ]


def test_a_full_disk_stops_the_sweep_and_fails_no_trial(listener, tmp_path):
    error = "ray::train()\ntasks.machine_faults.DiskFull: the disk is full"
    LedCallback(listener, {"1": make_spec()}).on_trial_error(0, [], FakeTrial(tmp_path, error))
    assert isinstance(listener.error, DiskFull)
    assert listener.heard == []


def test_an_error_of_the_next_trial_is_kept_for_the_sweep(listener):
    assert LedSearcher(listener, lambda spec: None, {}).suggest("1") is None
    assert isinstance(listener.error, OSError)


def test_trials_start_in_the_order_in_which_they_were_handed_out(tmp_path):
    first, second, third = (
        FakeTrial(tmp_path, trial_id=name, status=status)
        for name, status in (("9", Trial.RUNNING), ("8", Trial.PENDING), ("7", Trial.PENDING))
    )

    class Controller:
        def get_live_trials(self):
            return {third, second, first}

    handed_out = {trial.trial_id: make_spec() for trial in (first, second, third)}
    assert LedScheduler(None, handed_out).choose_trial_to_run(Controller()) is second


def test_an_ended_trial_is_remembered_no_longer(listener, tmp_path):
    handed_out = {"1": make_spec(), "2": make_spec()}
    LedCallback(listener, handed_out).on_trial_error(0, [], FakeTrial(tmp_path, "it was killed"))
    assert list(handed_out) == ["2"]
