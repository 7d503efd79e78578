import json

import pytest

from dml_core.trials.journal import (
    Journal,
    describe_mixed_devices,
    make_record,
    read_attempt,
    read_device,
    read_epochs,
)
from dml_core.trials.key import make_parts
from dml_core.trials.spec import TrialSpec
from dml_core.trials.store import LocalStore
from tests.references.tiny_trials import tiny_config

METRIC = "map_at_r"


def make_spec(root, number=0, **knobs):
    config = tiny_config(root, **knobs)
    return TrialSpec(f"arm-{number}", "study", "arm", "search", number, {}, config)


def make_epoch(number, score, *, attempt=1, device="cpu AVX2"):
    validation = {} if score is None else {METRIC: score}
    numbers = {"epoch": number, "train_seconds": 0.5, "validation": validation}
    return {**numbers, "attempt": attempt, "device": device}


def write_epochs(journal, scores, *, device="cpu AVX2"):
    """Writes a trial's epochs as its worker does."""
    lines = [json.dumps(make_epoch(n, s, device=device)) for n, s in enumerate(scores, start=1)]
    journal.store.write(journal.key, "epochs.jsonl", "".join(line + "\n" for line in lines))


def write_result(journal, outcome="finished", *, reason="", epoch=3, attempt=1):
    journal.write_result({"outcome": outcome, "reason": reason, "epoch": epoch, "attempt": attempt})


@pytest.fixture
def journal(tmp_path):
    return Journal(LocalStore(tmp_path), "key")


def test_a_trial_has_ended_once_it_has_a_result(journal, tmp_path):
    spec = make_spec(tmp_path)
    write_epochs(journal, [0.1, 0.3, 0.2])
    assert make_record(spec, journal) is None
    assert not journal.has_ended()
    write_result(journal)
    assert journal.has_ended()
    record = make_record(spec, journal)
    assert (record.status, record.score, record.best_epoch) == ("finished", 0.3, 2)
    assert (record.epochs, record.train_seconds, record.resumed) == (3, 1.5, 0)
    assert (record.validation, record.key) == ({METRIC: 0.3}, "key")


def test_the_last_epoch_counts_where_the_trial_selects_it(journal, tmp_path):
    write_epochs(journal, [0.1, 0.3, 0.2])
    write_result(journal)
    record = make_record(make_spec(tmp_path, training__select="last"), journal)
    assert (record.score, record.best_epoch) == (0.2, 3)


def test_attempts_after_the_first_count_as_resumed(journal, tmp_path):
    write_epochs(journal, [0.1])
    write_result(journal, attempt=3)
    assert make_record(make_spec(tmp_path), journal).resumed == 2


@pytest.mark.parametrize(
    ("outcome", "is_end"),
    [("finished", True), ("diverged", True), ("collapsed", True), ("failed", False)],
)
def test_only_an_outcome_that_every_attempt_reaches_is_an_end(journal, outcome, is_end):
    write_result(journal, outcome)
    assert journal.has_ended() == is_end


@pytest.mark.parametrize("content", ["", '{"outcome": "fin', "[]", "{}"])
def test_a_result_that_cannot_be_read_is_none(journal, content):
    journal.store.write("key", "result.json", content)
    assert journal.result() is None
    assert not journal.has_ended()


def test_a_torn_last_line_is_left_out(journal):
    write_epochs(journal, [0.1, 0.2])
    whole = journal.epochs()
    text = journal.store.read("key", "epochs.jsonl")
    journal.store.write("key", "epochs.jsonl", text + '{"epoch": 3, "tra')
    assert journal.epochs() == whole
    assert read_epochs(journal.checkpoints.parent) == whole


def test_epochs_after_the_last_checkpoint_are_removed(journal):
    write_epochs(journal, [0.1, 0.2, 0.3])
    journal.keep_epochs(last=1)
    assert [epoch["epoch"] for epoch in journal.epochs()] == [1]
    journal.append_epoch(make_epoch(2, 0.4, attempt=2, device="cuda A100"))
    assert read_attempt(journal.epochs()) == 2
    assert read_device(journal.epochs()) == "cuda A100"
    assert (read_attempt([]), read_device([])) == (0, "")


def test_a_failure_sums_up_the_epochs_and_keeps_the_traceback(journal, tmp_path):
    spec = make_spec(tmp_path)
    write_epochs(journal, [0.1, None])
    journal.write_failure(spec.config, reason="out of memory", traceback="Traceback: ...")
    journal.write_failure(spec.config, reason="too late to count", traceback="")
    record = make_record(spec, journal)
    assert (record.status, record.reason, record.epochs) == ("failed", "out of memory", 2)
    assert record.score is None
    assert journal.result()["traceback"] == "Traceback: ..."
    assert journal.result()["best_score"] == 0.1


def test_the_spec_is_written_once_and_names_all_parts_of_the_key(journal, tmp_path):
    config = tiny_config(tmp_path)
    parts = make_parts(config, code="c", data="d", libraries={"torch": "2"}, device="cpu")
    journal.open(parts, config=config, study="first")
    journal.open(parts, config=config, study="second")
    spec = journal.spec()
    assert spec.pop("config") == json.loads(json.dumps(config.model_dump(mode="json")))
    assert spec == {
        "key": "key",
        "study": "first",
        "code": "c",
        "data": "d",
        "libraries": {"torch": "2"},
        "device": "cpu",
    }


def test_a_reopened_trial_keeps_its_epochs_and_a_restarted_one_nothing(journal):
    write_epochs(journal, [0.1])
    write_result(journal)
    journal.checkpoints.mkdir()
    journal.reopen()
    assert journal.result() is None
    assert len(journal.epochs()) == 1
    assert journal.checkpoints.exists()
    journal.restart()
    assert journal.epochs() == []
    assert not journal.checkpoints.exists()


def test_several_kinds_of_device_are_reported():
    assert describe_mixed_devices(["cpu AVX2", "", "cpu AVX2"]) == ""
    line = describe_mixed_devices(["cuda A100", "cpu AVX2", "cpu AVX2"])
    assert ": 2 on cpu AVX2, 1 on cuda A100. " in line
