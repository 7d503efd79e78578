"""The rules of a sweep, with trials that are played by the test."""

import pytest

from dml_core.config import TrialConfig
from dml_core.training.checkpoint import Checkpoint, checkpoint_path, save_checkpoint
from dml_core.trials.halving import SuccessiveHalving
from dml_core.trials.journal import Ledger, write_end
from dml_core.trials.spec import TrialSpec
from tasks.sweep.conductor import (
    Conductor,
    ListedTrials,
    SearchThenRepeats,
    SweepEvents,
    refill_rungs,
)
from tasks.sweep.progress import ProgressTracker
from tasks.sweep.shared_trials import TrialPool, read_origin
from tests.dml_core.trials.test_ledger import write_epochs

METRIC = "map_at_r"
CONFIG = TrialConfig()


def make_spec(number, *, phase="search", arm="a", config=CONFIG):
    return TrialSpec(f"{arm}-{phase}-{number}", "study", arm, phase, number, {}, config)


def other_seed(seed):
    return CONFIG.model_copy(update={"seed": seed})


class Game:
    """A conductor over given trials, and everything it said."""

    def __init__(self, folder, search, repeats=(), *, halving=None, max_failed=10, sweeps=None):
        self.heard = []
        self.ledger = Ledger(folder, code="", data_version=lambda config: "data")
        if halving:
            refill_rungs(halving, self.ledger)
        events = SweepEvents(
            on_update=lambda progress: None,
            on_trial_start=lambda spec: self.heard.append(("start", spec.trial_id)),
            on_epoch=lambda spec, e: self.heard.append(("epoch", spec.trial_id, e["epoch"])),
            on_trial_end=lambda r: self.heard.append((r.status, r.spec.trial_id)),
        )
        self.conductor = Conductor(
            SearchThenRepeats(ListedTrials(search), lambda records: repeats),
            self.ledger,
            tracker=ProgressTracker("study", total=9),
            events=events,
            halving=halving,
            pool=TrialPool(self.ledger, sweeps),
            max_failed=max_failed,
        )

    def play(self, spec, scores, outcome="finished"):
        self.conductor.start(spec)
        for count, score in enumerate(scores, start=1):
            write_epochs(self.ledger.trial_folder(spec), scores[:count])
            epoch = {"epoch": count, "train_seconds": 0.5, "validation": {METRIC: score}}
            if not self.conductor.report(spec, epoch):
                return self.conductor.end(spec)
        folder = self.ledger.trial_folder(spec)
        state = Checkpoint(spec.config, len(scores), model={}, loss={}, optimizer={})
        save_checkpoint(state, checkpoint_path(folder / "checkpoints", len(scores)))
        write_end(folder, spec.config, outcome=outcome, reason="")
        return self.conductor.end(spec)


def test_repeats_wait_for_the_last_trial_of_the_search(tmp_path):
    first, second = make_spec(0), make_spec(1)
    repeat = make_spec(0, phase="repeat", config=other_seed(1))
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


def test_a_repeat_with_the_configuration_of_a_finished_search_trial_is_not_trained(tmp_path):
    spec, repeat = make_spec(0), make_spec(0, phase="repeat")
    game = Game(tmp_path, [spec], [repeat])
    game.conductor.next()
    game.play(spec, [0.1, 0.4])
    assert game.conductor.next() is None
    record = game.conductor.records[repeat.trial_id]
    assert record.spec == repeat
    assert (record.score, record.folder) == (0.4, f"trials/{repeat.trial_id}")
    assert read_origin(tmp_path / record.folder).trial_id == spec.trial_id
    assert game.heard[-4:] == [
        ("start", repeat.trial_id),
        ("epoch", repeat.trial_id, 1),
        ("epoch", repeat.trial_id, 2),
        ("finished", repeat.trial_id),
    ]


def test_a_trial_that_another_study_trained_is_told_and_not_run(tmp_path):
    other, own = make_spec(0, arm="x"), make_spec(0)
    before = Game(tmp_path / "other", [other])
    before.conductor.next()
    before.play(other, [0.1, 0.4])
    game = Game(tmp_path / "own", [own, make_spec(1, config=other_seed(1))], sweeps=tmp_path)
    assert game.conductor.next() == make_spec(1, config=other_seed(1))
    record = game.conductor.records[own.trial_id]
    assert (record.spec, record.status, record.score) == (own, "finished", 0.4)
    assert game.heard == [
        ("start", own.trial_id),
        ("epoch", own.trial_id, 1),
        ("epoch", own.trial_id, 2),
        ("finished", own.trial_id),
    ]


def test_a_search_that_prunes_trains_its_own_trials_and_takes_over_repeats(tmp_path):
    config = other_seed(1)
    before = Game(tmp_path / "other", [make_spec(0, arm="x"), make_spec(1, arm="x", config=config)])
    for number, each in enumerate((CONFIG, config)):
        before.conductor.next()
        before.play(make_spec(number, arm="x", config=each), [0.4])
    own, repeat = make_spec(0), make_spec(1, phase="repeat", config=config)
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=2)
    game = Game(tmp_path / "own", [own], [repeat], halving=halving, sweeps=tmp_path)
    assert game.conductor.next() == own
    game.play(own, [0.5])
    assert game.conductor.next() is None
    assert game.conductor.records[repeat.trial_id].score == 0.4


def test_what_ended_before_is_told_again_and_not_run(tmp_path):
    specs = [make_spec(0), make_spec(1, config=other_seed(1))]
    before = Game(tmp_path, specs)
    before.conductor.next()
    before.play(specs[0], [0.1])
    after = Game(tmp_path, specs)
    assert after.conductor.next() == specs[1]
    assert after.heard == before.heard


def test_epochs_that_come_twice_are_told_once(tmp_path):
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
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=2)
    good, bad, other = make_spec(0), make_spec(1), make_spec(0, arm="b")
    game = Game(tmp_path, [good, bad, other], halving=halving)
    for spec, scores in ((good, [0.5, 0.6]), (bad, [0.1, 0.2]), (other, [0.1, 0.2])):
        game.conductor.next()
        game.play(spec, scores)
    statuses = {name: record.status for name, record in game.conductor.records.items()}
    assert statuses == {"a-search-0": "finished", "a-search-1": "pruned", "b-search-0": "finished"}
    assert "after epoch 1 its score 0.1000" in game.conductor.records["a-search-1"].reason


def test_rungs_are_those_of_the_ledger_after_a_restart(tmp_path):
    specs = [make_spec(0), make_spec(1)]
    before = Game(tmp_path, specs, halving=SuccessiveHalving(grace_epochs=1, reduction_factor=2))
    before.conductor.next()
    before.play(specs[0], [0.5, 0.6])
    after = Game(tmp_path, specs, halving=SuccessiveHalving(grace_epochs=1, reduction_factor=2))
    after.conductor.next()
    after.play(specs[1], [0.1, 0.2])
    assert after.conductor.records["a-search-1"].status == "pruned"


def test_repeats_are_never_pruned(tmp_path):
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=2)
    repeat = make_spec(0, phase="repeat", config=other_seed(3))
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
def test_a_repeat_that_lost_its_last_checkpoint_goes_on_from_the_one_before(
    tmp_path, phase, runs_again
):
    spec = make_spec(0, phase=phase)
    trials = ([spec], []) if phase == "search" else ([], [spec])
    game = Game(tmp_path, *trials)
    assert game.conductor.next() == spec
    game.play(spec, [0.1, 0.4])
    checkpoints = game.ledger.trial_folder(spec) / "checkpoints"
    checkpoint_path(checkpoints, 2).write_bytes(b"half of it")
    again = Game(tmp_path, *trials)
    assert again.conductor.next() == (spec if runs_again else None)
    assert (again.ledger.find(spec) is None) == runs_again
    assert len(again.ledger.epochs(spec)) == 2
