import json

import pytest

from dml_core.config import resolve_trial_config
from dml_core.studies.equal_numbers import have_equal_numbers
from dml_core.studies.ledger import Ledger, note_start
from dml_core.studies.trial_spec import TrialSpec
from tests.references.tiny_trials import tiny_config

METRIC = "map_at_r"


def make_spec(root, number=0, **knobs):
    config = tiny_config(root, **knobs)
    return TrialSpec(f"arm-{number}", "study", "arm", "search", number, {}, config)


def make_ledger(root, *, code="code", data="data"):
    return Ledger(root, code=code, data_version=lambda config: data)


def write_epochs(folder, scores):
    metrics = [{} if score is None else {METRIC: score} for score in scores]
    lines = [
        json.dumps({"epoch": number, "train_seconds": 0.5, "validation": validation})
        for number, validation in enumerate(metrics, start=1)
    ]
    (folder / "epochs.jsonl").write_text("".join(line + "\n" for line in lines))


def write_result(folder, outcome="finished", reason="", epoch=3):
    (folder / "result.json").write_text(
        json.dumps({"outcome": outcome, "reason": reason, "epoch": epoch})
    )


def finish(ledger, spec, scores=(0.1, 0.3, 0.2)):
    folder = ledger.open(spec)
    note_start(folder)
    write_epochs(folder, scores)
    write_result(folder)


def test_a_trial_has_ended_once_it_has_a_result(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    folder = ledger.open(spec)
    write_epochs(folder, [0.1])
    assert ledger.find(spec) is None
    finish(ledger, spec)
    record = ledger.find(spec)
    assert (record.status, record.score, record.best_epoch, record.epochs) == (
        "finished",
        0.3,
        2,
        3,
    )
    assert record.validation == {METRIC: 0.3}
    assert record.train_seconds == 1.5
    assert record.folder == "trials/arm-0"
    assert record.resumed == 0


def test_the_last_epoch_counts_where_the_trial_selects_it(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path, training__select="last")
    finish(ledger, spec)
    assert ledger.find(spec).score == 0.2
    assert ledger.find(spec).best_epoch == 3


@pytest.mark.parametrize(
    "later",
    [
        lambda root: (make_ledger(root, code="other"), make_spec(root)),
        lambda root: (make_ledger(root, data="other"), make_spec(root)),
        lambda root: (make_ledger(root), make_spec(root, loss__alpha=16)),
    ],
    ids=["code", "data", "configuration"],
)
def test_a_trial_of_another_version_is_stale_and_removed(tmp_path, later):
    finish(make_ledger(tmp_path), make_spec(tmp_path))
    ledger, spec = later(tmp_path)
    assert ledger.find(spec) is None
    assert ledger.epochs(spec) == []
    folder = ledger.open(spec)
    assert [path.name for path in folder.iterdir()] == ["spec.json"]


def test_an_unfinished_trial_keeps_its_files_when_it_is_opened_again(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    write_epochs(ledger.open(spec), [0.1])
    assert len(make_ledger(tmp_path).epochs(spec)) == 1
    assert (ledger.open(spec) / "epochs.jsonl").exists()


def test_where_the_data_lie_does_not_make_a_trial_stale(tmp_path):
    one, other = tiny_config(tmp_path / "a"), tiny_config(tmp_path / "b")
    assert have_equal_numbers(one, other)
    assert not have_equal_numbers(one, resolve_trial_config())


def test_an_end_that_is_written_from_outside_sums_up_the_epochs(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    write_epochs(ledger.open(spec), [0.1, None])
    ledger.end(spec, outcome="stopped", reason="behind")
    ledger.end(spec, outcome="failed", reason="too late to count")
    record = ledger.find(spec)
    assert (record.status, record.reason, record.epochs) == ("pruned", "behind", 2)
    assert record.score == 0.1


def test_a_failed_trial_has_no_score(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    write_epochs(ledger.open(spec), [0.9])
    ledger.end(spec, outcome="failed", reason="out of memory")
    assert ledger.find(spec).score is None


def test_starts_after_the_first_count_as_resumed(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    finish(ledger, spec)
    note_start(ledger.trial_folder(spec))
    note_start(ledger.trial_folder(spec))
    assert ledger.find(spec).resumed == 2


def test_known_specs_are_those_that_are_not_stale(tmp_path):
    ledger = make_ledger(tmp_path)
    specs = [make_spec(tmp_path, number) for number in range(2)]
    for spec in specs:
        ledger.open(spec)
    (tmp_path / "trials" / "arm-1" / "spec.json").write_text("{ torn")
    assert list(ledger.known_specs()) == specs[:1]
    assert list(make_ledger(tmp_path, code="other").known_specs()) == []
