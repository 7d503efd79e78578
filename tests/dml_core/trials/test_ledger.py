import json
import uuid

import pytest

from dml_core.trials.ledger import FILE_NAME, Ledger
from dml_core.trials.store import LocalStore, open_store
from tests.dml_core.trials.test_journal import METRIC, make_spec, write_epochs, write_result

LIBRARIES = {"torch": "2.0", "timm": "1.0"}


def make_ledger(
    root, study="study", *, code="code", data="data", libraries=LIBRARIES, device="cpu AVX2"
):
    folder = root / ".sweeps" / study
    folder.mkdir(parents=True, exist_ok=True)
    return Ledger(
        folder,
        LocalStore(root / ".trials"),
        code=code,
        data_version=lambda config: data,
        libraries=libraries,
        expect_device=lambda config: device,
    )


def finish(ledger, spec, *, outcome="finished"):
    journal = ledger.open(spec)
    write_epochs(journal, [0.1, 0.3, 0.2])
    write_result(journal, outcome)
    return journal


def test_the_key_names_the_journal_and_a_finished_trial_is_found(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    assert ledger.find(spec) is None
    journal = finish(ledger, spec)
    assert ledger.store.list_keys() == [ledger.key(spec)] == [journal.key]
    record = make_ledger(tmp_path).find(spec)
    assert (record.spec, record.status, record.score) == (spec, "finished", 0.3)
    assert record.key == journal.key


OTHERS = {
    "code": lambda root: (make_ledger(root, code="other"), make_spec(root)),
    "data": lambda root: (make_ledger(root, data="other"), make_spec(root)),
    "torch": lambda root: (
        make_ledger(root, libraries={**LIBRARIES, "torch": "2.1"}),
        make_spec(root),
    ),
    "device": lambda root: (make_ledger(root, device="cpu AVX512"), make_spec(root)),
    "configuration": lambda root: (make_ledger(root), make_spec(root, loss__alpha=16)),
}


@pytest.mark.parametrize("part", OTHERS)
def test_a_trial_with_another_key_is_never_used(tmp_path, part):
    finish(make_ledger(tmp_path), make_spec(tmp_path))
    ledger, spec = OTHERS[part](tmp_path)
    assert ledger.find(spec) is None
    assert ledger.open(spec).epochs() == []
    assert not ledger.is_shared(spec)


@pytest.mark.parametrize(
    "knobs",
    [
        {"training__loader_workers": 2},
        {"evaluation__clustering": True, "evaluation__binary": True},
        {"data__prepared_root": "elsewhere"},
    ],
)
def test_another_study_uses_a_trial_with_the_same_key(tmp_path, knobs):
    first, second = make_ledger(tmp_path, "first"), make_ledger(tmp_path, "second")
    finish(first, make_spec(tmp_path, 7))
    spec = make_spec(tmp_path, **knobs)
    record = second.find(spec)
    assert (record.spec, record.status, record.score) == (spec, "finished", 0.3)
    journal = second.open(spec)
    assert journal.spec()["study"] == "first"
    assert second.is_shared(spec)
    assert not first.is_shared(make_spec(tmp_path, 7))
    # A later process still knows whose training it was.
    assert make_ledger(tmp_path, "second").is_shared(spec)


def test_a_repeat_with_the_key_of_an_own_search_trial_is_not_shared(tmp_path):
    ledger, spec, repeat = make_ledger(tmp_path), make_spec(tmp_path), make_spec(tmp_path, 1)
    finish(ledger, spec)
    ledger.open(repeat)
    assert ledger.find(repeat).spec == repeat
    assert not ledger.is_shared(repeat)


def test_without_a_version_of_the_data_trials_are_not_shared(tmp_path):
    finish(make_ledger(tmp_path, "first", data=""), make_spec(tmp_path))
    assert make_ledger(tmp_path, "second", data="").find(make_spec(tmp_path)) is None
    assert make_ledger(tmp_path, "first", data="").find(make_spec(tmp_path)) is not None


def test_a_pruned_trial_stays_pruned_for_its_study_and_is_open_for_others(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    journal = ledger.open(spec)
    write_epochs(journal, [0.1, 0.2])
    ledger.prune(spec, epoch=2, reason="behind")
    assert journal.result() is None
    other = make_ledger(tmp_path, "other")
    assert other.find(spec) is None
    # The other study resumes it to its end.
    finish(other, spec)
    assert other.find(spec).status == "finished"
    record = make_ledger(tmp_path).find(spec)
    assert (record.status, record.reason, record.epochs) == ("pruned", "behind", 2)
    assert (record.score, record.best_epoch, record.validation) == (0.2, 2, {METRIC: 0.2})


def test_a_failure_counts_only_for_the_study_that_saw_it(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    journal = ledger.open(spec)
    journal.write_failure(spec.config, reason="no luck", traceback="")
    assert ledger.end(spec).reason == "no luck"
    assert make_ledger(tmp_path).find(spec).status == "failed"
    assert make_ledger(tmp_path, "other").find(spec) is None
    assert not journal.has_ended()


def test_a_dead_worker_is_a_failure_of_the_study_and_leaves_no_result(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    journal = ledger.open(spec)
    write_epochs(journal, [0.9])
    assert ledger.end(spec) is None
    record = ledger.end(spec, error="its worker died")
    assert (record.status, record.reason, record.epochs) == ("failed", "its worker died", 1)
    assert record.score is None
    assert journal.result() is None


def test_failures_can_be_tried_again(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    ledger.open(spec)
    ledger.end(spec, error="its worker died")
    ledger.retry_failures()
    assert ledger.find(spec) is None
    assert make_ledger(tmp_path).find(spec) is None


def test_scores_at_rungs_are_those_that_the_study_judged(tmp_path):
    ledger, spec, other = make_ledger(tmp_path), make_spec(tmp_path), make_spec(tmp_path, 1)
    for each in (spec, other):
        write_epochs(ledger.open(each), [0.1, 0.2, 0.3])
    ledger.judge(spec, epoch=1, score=0.1)
    ledger.prune(other, epoch=2, reason="behind")
    judged = make_ledger(tmp_path).judged()
    assert [(j.spec, j.epoch, j.score) for j in judged] == [(spec, 1, 0.1), (other, 2, 0.2)]
    assert make_ledger(tmp_path, code="other").judged() == []


def test_known_trials_are_those_that_are_not_stale(tmp_path):
    ledger = make_ledger(tmp_path)
    specs = [make_spec(tmp_path, number) for number in range(2)]
    for spec in specs:
        ledger.open(spec)
    assert list(make_ledger(tmp_path).known_specs()) == specs
    assert list(make_ledger(tmp_path, code="other").known_specs()) == []
    assert list(make_ledger(tmp_path, data="other").known_specs()) == []
    assert list(make_ledger(tmp_path, "second").known_specs()) == []


def test_a_torn_line_is_skipped_and_spoils_no_later_one(tmp_path):
    ledger = make_ledger(tmp_path)
    specs = [make_spec(tmp_path, number) for number in range(2)]
    ledger.open(specs[0])
    with open(ledger.folder / FILE_NAME, "a") as file:
        file.write('{"event": "requ')
    make_ledger(tmp_path).open(specs[1])
    assert list(make_ledger(tmp_path).known_specs()) == specs


def test_a_trial_is_requested_once(tmp_path):
    for _ in range(2):
        make_ledger(tmp_path).open(make_spec(tmp_path))
    lines = (tmp_path / ".sweeps" / "study" / FILE_NAME).read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["requested"]


def test_trials_of_other_libraries_or_devices_are_counted_in_a_line(tmp_path):
    old = {**LIBRARIES, "torch": "1.9"}
    for number in range(3):
        finish(make_ledger(tmp_path, libraries=old), make_spec(tmp_path, number))
    for number in (3, 4):
        finish(make_ledger(tmp_path, device="cpu AVX512"), make_spec(tmp_path, number))
    finish(make_ledger(tmp_path), make_spec(tmp_path, 5))
    finish(make_ledger(tmp_path, code="older", libraries=old), make_spec(tmp_path, 6))
    ledger = make_ledger(tmp_path)
    assert ledger.describe_stale() == [
        "3 trials of torch 1.9 are not used; they are trained again with torch 2.0.",
        "2 trials of cpu AVX512 are not used; they are trained again with cpu AVX2.",
    ]
    assert [spec.number for spec in ledger.known_specs()] == [5]
    assert make_ledger(tmp_path / "nothing").describe_stale() == []


def test_superseded_trials_are_removed_unless_another_study_needs_them(tmp_path):
    old = [finish(make_ledger(tmp_path), make_spec(tmp_path, n, seed=n)).key for n in range(3)]
    make_ledger(tmp_path, "other").open(make_spec(tmp_path, 9, seed=1))
    ledger = make_ledger(tmp_path, code="new")
    new = [finish(ledger, make_spec(tmp_path, n, seed=n)).key for n in range(2)]
    ledger.remove_superseded()
    # The third one has no new key.
    assert make_ledger(tmp_path).store.list_keys() == sorted([*new, old[1], old[2]])


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_sweep_that_failures_stopped_is_remembered_until_they_are_retried(tmp_path, place):
    location = f"memory://{uuid.uuid4().hex}" if place == "bucket" else str(tmp_path / ".trials")

    def open_again():
        folder = tmp_path / ".sweeps" / "study"
        folder.mkdir(parents=True, exist_ok=True)
        store = open_store(location)
        return Ledger(folder, store, code="code", data_version=lambda _: "d", libraries=LIBRARIES)

    ledger, spec = open_again(), make_spec(tmp_path)
    ledger.open(spec)
    assert ledger.end(spec, error="it broke").status == "failed"
    ledger.stop()
    ledger = open_again()
    assert ledger.was_stopped
    assert ledger.find(spec).reason == "it broke"
    ledger.retry_failures()
    ledger = open_again()
    assert not ledger.was_stopped
    assert ledger.find(spec) is None
    assert ledger.knows(spec)
