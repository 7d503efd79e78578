"""The rules of a sweep, with trials that are played by the test."""

import pytest

from dml_core.config import TrialConfig
from dml_core.training.checkpoint import Checkpoint, checkpoint_path, save_checkpoint
from dml_core.trials.halving import SuccessiveHalving
from dml_core.trials.spec import TrialSpec
from tasks.sweep.conductor import (
    Conductor,
    ListedTrials,
    SearchThenRepeats,
    SweepEvents,
    refill_rungs,
)
from tasks.sweep.progress import ProgressTracker
from tasks.sweep.restarts import MAX_VAIN_STARTS, PAUSE_SECONDS
from tests.dml_core.trials.test_journal import write_epochs, write_result
from tests.dml_core.trials.test_ledger import make_ledger

METRIC = "map_at_r"
CONFIG = TrialConfig()


def make_spec(number, *, phase="search", arm="a", config=None):
    """Returns a trial; its number is its seed, unless a configuration is given."""
    config = config or other_seed(number)
    return TrialSpec(f"{arm}-{phase}-{number}", "study", arm, phase, number, {}, config)


def other_seed(seed):
    return CONFIG.model_copy(update={"seed": seed})


class Game:
    """A conductor over given trials, and the events that it reported."""

    def __init__(
        self,
        root,
        search,
        repeats=(),
        *,
        study="own",
        halving=None,
        max_failed=10,
        max_restarts=2,
        source=None,
    ):
        self.heard = []
        self.seconds = 0.0
        self.ledger = make_ledger(root, study)
        if halving:
            refill_rungs(halving, self.ledger)
        events = SweepEvents(
            on_update=lambda progress: None,
            on_trial_start=lambda spec: self.heard.append(("start", spec.trial_id)),
            on_epoch=lambda spec, e: self.heard.append(("epoch", spec.trial_id, e["epoch"])),
            on_trial_end=lambda r: self.heard.append((r.status, r.spec.trial_id)),
        )
        self.conductor = Conductor(
            source or SearchThenRepeats(ListedTrials(search), lambda records: repeats),
            self.ledger,
            tracker=ProgressTracker("study", total=9),
            events=events,
            halving=halving,
            max_failed=max_failed,
            max_restarts=max_restarts,
            clock=lambda: self.seconds,
        )

    def play(self, spec, scores, outcome="finished", *, begin=0):
        """Trains a trial as its worker does, after the epochs that are there."""
        journal = self.ledger.journal(spec)
        self.conductor.start(spec)
        for count, score in enumerate(scores[begin:], start=begin + 1):
            write_epochs(journal, scores[:count])
            epoch = {"epoch": count, "train_seconds": 0.5, "validation": {METRIC: score}}
            if not self.conductor.report(spec, epoch):
                return self.conductor.end(spec)
        state = Checkpoint(spec.config, len(scores), model={}, loss={}, optimizer={})
        save_checkpoint(state, checkpoint_path(journal.checkpoints, len(scores)))
        write_result(journal, outcome, epoch=len(scores))
        return self.conductor.end(spec)

    @property
    def statuses(self):
        return {name: record.status for name, record in self.conductor.records.items()}


def make_halving():
    return SuccessiveHalving(grace_epochs=1, reduction_factor=2)


def test_repeats_wait_for_the_last_trial_of_the_search(tmp_path):
    first, second = make_spec(0), make_spec(1)
    repeat = make_spec(2, phase="repeat")
    game = Game(tmp_path, [first, second], [repeat])
    assert [game.conductor.next() for _ in range(3)] == [first, second, None]
    assert not game.conductor.is_exhausted
    game.play(first, [0.1])
    assert game.conductor.next() is None
    game.play(second, [0.2])
    assert game.conductor.next() == repeat
    game.play(repeat, [0.3])
    assert game.conductor.next() is None
    assert game.conductor.is_exhausted


def test_further_rounds_of_the_search_come_before_the_repeats(tmp_path):
    first, second, third = (make_spec(number) for number in range(3))
    repeat = make_spec(9, phase="repeat")
    rounds, seen = [[second], [third], [make_spec(3)]], []

    def extend(records):
        seen.append([record.spec.number for record in records])
        return rounds.pop(0)

    source = SearchThenRepeats(
        ListedTrials([first]), lambda records: [repeat], extend=extend, max_rounds=2
    )
    game = Game(tmp_path, [], source=source)
    for spec in (first, second, third):
        assert game.conductor.next() == spec
        # The next round needs the records of this one.
        assert game.conductor.next() is None
        assert not game.conductor.is_exhausted
        game.play(spec, [0.1])
    assert game.conductor.next() == repeat
    assert seen == [[0], [0, 1]]


def test_a_round_without_tries_is_the_last(tmp_path):
    first, repeat = make_spec(0), make_spec(9, phase="repeat")
    calls = []

    def extend(records):
        calls.append(len(records))
        return []

    source = SearchThenRepeats(
        ListedTrials([first]), lambda records: [repeat], extend=extend, max_rounds=5
    )
    game = Game(tmp_path, [], source=source)
    game.conductor.next()
    game.play(first, [0.1])
    assert game.conductor.next() == repeat
    assert calls == [1]


def test_a_repeat_with_the_configuration_of_a_finished_search_trial_is_not_trained(tmp_path):
    spec, repeat = make_spec(0), make_spec(0, phase="repeat")
    game = Game(tmp_path, [spec], [repeat])
    game.conductor.next()
    game.play(spec, [0.1, 0.4])
    assert game.conductor.next() is None
    record = game.conductor.records[repeat.trial_id]
    assert record.spec == repeat
    assert (record.score, record.key) == (0.4, game.ledger.key(spec))
    assert not game.ledger.is_shared(repeat)
    assert game.heard[-4:] == [
        ("start", repeat.trial_id),
        ("epoch", repeat.trial_id, 1),
        ("epoch", repeat.trial_id, 2),
        ("finished", repeat.trial_id),
    ]


def test_a_trial_that_another_study_trained_is_reported_and_not_run(tmp_path):
    other, own = make_spec(0, arm="x"), make_spec(0)
    before = Game(tmp_path, [other], study="other")
    before.conductor.next()
    before.play(other, [0.1, 0.4])
    game = Game(tmp_path, [own, make_spec(1)])
    assert game.conductor.next() == make_spec(1)
    record = game.conductor.records[own.trial_id]
    assert (record.spec, record.status, record.score) == (own, "finished", 0.4)
    assert game.ledger.is_shared(own)
    assert game.heard == [
        ("start", own.trial_id),
        ("epoch", own.trial_id, 1),
        ("epoch", own.trial_id, 2),
        ("finished", own.trial_id),
    ]


def test_two_trials_with_one_key_are_trained_once(tmp_path):
    one, other = make_spec(0, arm="a"), make_spec(0, arm="b")
    game = Game(tmp_path, [one, other, make_spec(1)])
    assert game.conductor.next() == one
    assert game.conductor.next() == make_spec(1)
    game.play(make_spec(1), [0.2])
    assert game.conductor.next() is None
    assert not game.conductor.is_exhausted
    game.play(one, [0.1, 0.4])
    assert {name: record.score for name, record in game.conductor.records.items()} == {
        "a-search-1": 0.2,
        "a-search-0": 0.4,
        "b-search-0": 0.4,
    }
    assert game.conductor.next() is None
    assert game.conductor.is_exhausted


def test_a_trial_that_waited_for_one_that_failed_runs_itself(tmp_path):
    one, other = make_spec(0, arm="a"), make_spec(0, arm="b")
    game = Game(tmp_path, [one, other])
    assert [game.conductor.next(), game.conductor.next()] == [one, None]
    game.conductor.start(one)
    game.conductor.end(one, error="its worker died")
    assert game.conductor.next() == other
    game.play(other, [0.4])
    assert game.statuses == {"a-search-0": "failed", "b-search-0": "finished"}


def test_a_trial_that_another_study_trains_now_comes_last(tmp_path):
    specs = [make_spec(number) for number in range(3)]
    game = Game(tmp_path, specs)
    with game.ledger.journal(specs[0]).lock():
        assert [game.conductor.next() for _ in range(3)] == [specs[1], specs[2], specs[0]]
    assert game.conductor.next() is None


def test_a_search_that_prunes_judges_what_another_study_trained(tmp_path):
    good, bad = make_spec(0), make_spec(1)
    before = Game(tmp_path, [good, bad], study="other")
    for spec, scores in ((good, [0.5, 0.6]), (bad, [0.1, 0.9])):
        before.conductor.next()
        before.play(spec, scores)
    repeat = make_spec(1, phase="repeat")
    game = Game(tmp_path, [good, bad], [repeat], halving=make_halving())
    assert game.conductor.next() is None
    # The second was behind after its first epoch; what it reached later does not count.
    assert game.statuses == {
        "a-search-0": "finished",
        "a-search-1": "pruned",
        "a-repeat-1": "finished",
    }
    pruned = game.conductor.records["a-search-1"]
    assert (pruned.epochs, pruned.score) == (1, 0.1)
    assert game.conductor.records["a-repeat-1"].score == 0.9
    assert [event for event in game.heard if event[1] == "a-search-1"] == [
        ("start", "a-search-1"),
        ("epoch", "a-search-1", 1),
        ("pruned", "a-search-1"),
    ]


def test_what_a_study_pruned_is_resumed_by_another_and_stays_pruned_in_its_own(tmp_path):
    good, bad = make_spec(0), make_spec(1)
    game = Game(tmp_path, [good, bad], halving=make_halving())
    for spec, scores in ((good, [0.5, 0.6]), (bad, [0.1, 0.9])):
        game.conductor.next()
        game.play(spec, scores)
    other = Game(tmp_path, [bad], study="other")
    assert other.conductor.next() == bad
    other.play(bad, [0.1, 0.9], begin=1)
    assert other.conductor.records["a-search-1"].score == 0.9
    again = Game(tmp_path, [good, bad], halving=make_halving())
    assert again.conductor.next() is None
    assert again.conductor.records == game.conductor.records
    assert again.statuses["a-search-1"] == "pruned"


def test_what_ended_before_is_reported_again_and_not_run(tmp_path):
    specs = [make_spec(0), make_spec(1)]
    before = Game(tmp_path, specs)
    before.conductor.next()
    before.play(specs[0], [0.1])
    after = Game(tmp_path, specs)
    assert after.conductor.next() == specs[1]
    assert after.heard == before.heard


def test_epochs_that_come_twice_are_reported_once(tmp_path):
    spec = make_spec(0)
    game = Game(tmp_path, [spec])
    game.conductor.next()
    game.conductor.start(spec)
    epoch = {"epoch": 1, "train_seconds": 0.5, "validation": {METRIC: 0.1}}
    assert game.conductor.report(spec, epoch)
    game.conductor.start(spec)
    assert game.conductor.report(spec, epoch)
    assert game.heard == [("start", spec.trial_id), ("epoch", spec.trial_id, 1)]


def test_a_trial_that_was_stopped_with_the_sweep_has_not_ended(tmp_path):
    spec = make_spec(0)
    game = Game(tmp_path, [spec])
    game.conductor.next()
    game.conductor.start(spec)
    game.conductor.end(spec)
    assert game.conductor.records == {}
    assert Game(tmp_path, [spec]).conductor.next() == spec


def test_a_trial_behind_its_arm_is_pruned_and_one_of_another_arm_is_not(tmp_path):
    halving = make_halving()
    good, bad, other = make_spec(0), make_spec(1), make_spec(0, arm="b")
    game = Game(tmp_path, [good, bad, other], halving=halving)
    for spec, scores in ((good, [0.5, 0.6]), (bad, [0.1, 0.2]), (other, [0.1, 0.2])):
        game.conductor.next()
        game.play(spec, scores)
    assert game.statuses == {
        "a-search-0": "finished",
        "a-search-1": "pruned",
        "b-search-0": "finished",
    }
    assert "after epoch 1 its score 0.1000" in game.conductor.records["a-search-1"].reason


def test_rungs_are_those_of_the_study_after_a_restart(tmp_path):
    specs = [make_spec(0), make_spec(1)]
    before = Game(tmp_path, specs, halving=make_halving())
    before.conductor.next()
    before.play(specs[0], [0.5, 0.6])
    after = Game(tmp_path, specs, halving=make_halving())
    after.conductor.next()
    after.play(specs[1], [0.1, 0.2])
    assert after.conductor.records["a-search-1"].status == "pruned"


def test_repeats_are_never_pruned(tmp_path):
    halving = make_halving()
    repeat = make_spec(3, phase="repeat")
    game = Game(tmp_path, [make_spec(0)], [repeat], halving=halving)
    game.conductor.next()
    game.play(make_spec(0), [0.9, 0.9])
    game.conductor.next()
    game.play(repeat, [0.1, 0.1])
    assert game.conductor.records[repeat.trial_id].status == "finished"


def test_a_dead_worker_is_a_failure_and_too_many_end_the_sweep(tmp_path):
    specs = [make_spec(number) for number in range(3)]
    game = Game(tmp_path, specs, max_failed=1)
    for spec in specs[:2]:
        assert not game.conductor.has_too_many_failures
        game.conductor.start(game.conductor.next())
        game.conductor.end(spec, error="its worker died")
    assert game.conductor.has_too_many_failures
    assert game.conductor.next() is None
    assert game.conductor.is_exhausted
    assert [record.reason for record in game.conductor.failures] == ["its worker died"] * 2


def test_a_trial_whose_workers_die_within_it_fails_after_the_last_restart(tmp_path, caplog):
    spec, other = make_spec(0), make_spec(1)
    game = Game(tmp_path, [spec, other], max_restarts=2)
    for _ in range(3):
        assert game.conductor.next() == spec
        game.conductor.start(spec)
        game.conductor.lose_worker(spec, why="it was killed")
    assert game.conductor.next() == other
    (failure,) = game.conductor.failures
    assert failure.reason == (
        "its worker died, and sweep.max_restarts=2 did not help. The last time: it was killed"
    )
    resumes = f"trial {spec.trial_id}: its worker died (it was killed). It resumes in another one"
    assert [message.startswith(resumes) for message in caplog.messages] == [True, True]
    # A restart is no second start for the listeners.
    assert game.heard == [("start", spec.trial_id), ("failed", spec.trial_id)]


def test_workers_that_die_before_they_begin_use_up_no_restart(tmp_path):
    spec, other = make_spec(0), make_spec(1)
    game = Game(tmp_path, [spec, other], max_restarts=0)
    assert game.conductor.next() == spec
    for lost in range(MAX_VAIN_STARTS):
        game.conductor.lose_worker(spec, why="its node is gone")
        # The other trials do not wait for it.
        assert game.conductor.next() == (other if lost == 0 else None)
        assert not game.conductor.is_exhausted
        game.seconds += PAUSE_SECONDS
        assert game.conductor.next() == spec
    game.play(other, [0.2])
    game.play(spec, [0.4])
    assert game.statuses == {"a-search-0": "finished", "a-search-1": "finished"}


def test_a_trial_that_no_worker_can_begin_fails_after_a_minute(tmp_path):
    spec = make_spec(0)
    game = Game(tmp_path, [spec])
    assert game.conductor.next() == spec
    while game.conductor.failures == []:
        game.conductor.lose_worker(spec, why="No module named torch")
        game.seconds += PAUSE_SECONDS
        game.conductor.next()
    assert game.seconds == 60 + PAUSE_SECONDS
    reason = game.conductor.failures[0].reason
    assert reason.startswith("13 workers in a row died before they began it")
    assert reason.endswith("`ray status`. The last time: No module named torch")
    assert game.conductor.is_exhausted


def test_a_trial_that_ended_with_its_workers_death_is_not_run_again(tmp_path):
    spec = make_spec(0)
    game = Game(tmp_path, [spec])
    game.conductor.next()
    game.conductor.start(spec)
    journal = game.ledger.journal(spec)
    write_epochs(journal, [0.4])
    state = Checkpoint(spec.config, 1, model={}, loss={}, optimizer={})
    save_checkpoint(state, checkpoint_path(journal.checkpoints, 1))
    write_result(journal, "finished", epoch=1)
    game.conductor.lose_worker(spec, why="")
    assert game.conductor.next() is None
    assert game.statuses == {spec.trial_id: "finished"}
    assert game.conductor.is_exhausted


def test_trials_with_one_key_are_trained_once_also_after_a_workers_death(tmp_path):
    one, other = make_spec(0, arm="a"), make_spec(0, arm="b")
    game = Game(tmp_path, [one, other])
    assert [game.conductor.next(), game.conductor.next()] == [one, None]
    game.conductor.start(one)
    game.conductor.lose_worker(one, why="it was killed")
    assert [game.conductor.next(), game.conductor.next()] == [one, None]
    game.play(one, [0.4])
    assert game.statuses == {"a-search-0": "finished", "b-search-0": "finished"}


def test_an_error_of_a_listener_stops_the_sweep_and_is_raised(tmp_path):
    game = Game(tmp_path, [make_spec(0)])
    with game.conductor.kept_errors():
        raise OSError("the record is away")
    assert game.conductor.must_stop
    assert game.conductor.next() is None
    assert game.conductor.is_exhausted
    with pytest.raises(OSError, match="the record is away"):
        game.conductor.raise_error()


@pytest.mark.parametrize(("phase", "runs_again"), [("repeat", True), ("search", False)])
def test_a_repeat_that_lost_its_last_checkpoint_resumes_from_the_one_before(
    tmp_path, phase, runs_again
):
    spec = make_spec(0, phase=phase)
    trials = ([spec], []) if phase == "search" else ([], [spec])
    game = Game(tmp_path, *trials)
    assert game.conductor.next() == spec
    game.play(spec, [0.1, 0.4])
    checkpoint_path(game.ledger.journal(spec).checkpoints, 2).write_bytes(b"half of it")
    again = Game(tmp_path, *trials)
    assert again.conductor.next() == (spec if runs_again else None)
    assert (spec.trial_id in again.conductor.records) != runs_again
    assert len(again.ledger.journal(spec).epochs()) == 2
