import pytest

from dml_core.config import TrialConfig
from dml_core.trials.spec import TrialRecord, TrialSpec
from tasks.sweep.progress import ProgressTracker


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make_record(name, *, arm="a", status="finished", score=0.5):
    spec = TrialSpec(name, "study", arm, "search", 0, {}, TrialConfig())
    return TrialRecord(spec, status, "", 1, 1, score, {}, f"trials/{name}", 1.0)


def test_the_time_left_is_that_of_the_missing_trials_over_the_lanes():
    clock = Clock()
    tracker = ProgressTracker("study", total=5, num_concurrent=2, clock=clock)
    assert tracker.now().seconds_left is None
    tracker.start("1")
    clock.now = 10.0
    tracker.end(make_record("1"))
    # 4 trials of 10 s on 2 lanes.
    assert tracker.now().seconds_left == pytest.approx(20.0)
    tracker.start("2")
    clock.now = 14.0
    # 4 s of trial 2 are done.
    assert tracker.now().seconds_left == pytest.approx((40 - 4) / 2)


def test_before_a_trial_has_ended_the_pace_of_its_epochs_gives_the_time_left():
    clock = Clock()
    tracker = ProgressTracker("study", total=4, num_concurrent=2, clock=clock)
    tracker.start("1")
    clock.now = 20.0
    # A trial that resumes begins with epochs that it did not train now.
    tracker.report("1", 0.5)
    assert tracker.now().seconds_left is None
    clock.now = 30.0
    tracker.report("1", 0.75)
    # A quarter in 10 s: 40 s each, of which 30 s are spent.
    assert tracker.now().seconds_left == pytest.approx((4 * 40 - 30) / 2)


def test_counts_tell_the_ends_apart_and_the_best_is_kept_for_each_arm():
    tracker = ProgressTracker("study", total=6, clock=Clock())
    for number, status in enumerate(["finished", "pruned", "failed", "diverged", "collapsed"]):
        tracker.start(str(number))
        tracker.end(make_record(str(number), status=status, score=0.1 * (number + 1)))
    tracker.end(make_record("b", arm="b", score=0.7))
    progress = tracker.now()
    assert (progress.done, progress.running, progress.total) == (6, 0, 6)
    assert (progress.pruned, progress.failed, progress.diverged, progress.collapsed) == (1,) * 4
    assert progress.best == {"a": 0.1, "b": 0.7}
    assert progress.seconds_left == 0.0


def test_a_restarted_trial_runs_once():
    tracker = ProgressTracker("study", total=2, clock=Clock())
    tracker.start("1")
    tracker.start("1")
    assert tracker.now().running == 1
