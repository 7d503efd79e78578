import json

import pytest

from dml_core.config import resolve_trial_config
from dml_core.trials.journal import Ledger, note_device, note_start, read_key, say_mixed_devices
from dml_core.trials.key import have_equal_numbers
from dml_core.trials.spec import TrialSpec
from tests.references.tiny_trials import tiny_config

METRIC = "map_at_r"


def make_spec(root, number=0, **knobs):
    config = tiny_config(root, **knobs)
    return TrialSpec(f"arm-{number}", "study", "arm", "search", number, {}, config)


def make_ledger(root, *, code="code", data="data", torch="2.0", device=""):
    return Ledger(
        root,
        code=code,
        data_version=lambda config: data,
        libraries={"torch": torch, "timm": "1.0"},
        expect_device=lambda config: device,
    )


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
        lambda root: (make_ledger(root, torch="2.1"), make_spec(root)),
        lambda root: (make_ledger(root, device="cpu AVX512"), make_spec(root)),
        lambda root: (make_ledger(root), make_spec(root, loss__alpha=16)),
    ],
    ids=["code", "data", "libraries", "device", "configuration"],
)
def test_a_trial_of_another_version_is_stale_and_removed(tmp_path, later):
    finish(make_ledger(tmp_path), make_spec(tmp_path))
    note_device(make_ledger(tmp_path).trial_folder(make_spec(tmp_path)), "cpu AVX2")
    assert make_ledger(tmp_path, device="cpu AVX2").find(make_spec(tmp_path)) is not None
    ledger, spec = later(tmp_path)
    assert ledger.find(spec) is None
    assert ledger.epochs(spec) == []
    folder = ledger.open(spec)
    assert [path.name for path in folder.iterdir()] == ["spec.json"]


def test_trials_of_other_libraries_or_devices_are_counted_in_a_line(tmp_path):
    for number in range(3):
        finish(make_ledger(tmp_path, torch="1.9"), make_spec(tmp_path, number))
    for number in (3, 4):
        finish(make_ledger(tmp_path), make_spec(tmp_path, number))
        note_device(tmp_path / f"trials/arm-{number}", "cpu AVX512")
    finish(make_ledger(tmp_path), make_spec(tmp_path, 5))
    note_device(tmp_path / "trials/arm-5", "cpu AVX2")
    finish(make_ledger(tmp_path, code="older", torch="1.9"), make_spec(tmp_path, 6))
    ledger = make_ledger(tmp_path, device="cpu AVX2")
    assert ledger.say_outdated() == [
        "3 trials of torch 1.9 are not used; they are trained again with torch 2.0.",
        "2 trials of cpu AVX512 are not used; they are trained again with cpu AVX2.",
    ]
    assert [spec.number for spec in ledger.known_specs()] == [5]
    assert make_ledger(tmp_path / "nothing").say_outdated() == []


def test_a_folder_names_the_key_of_its_trial(tmp_path):
    ledger, spec = make_ledger(tmp_path), make_spec(tmp_path)
    folder = ledger.open(spec)
    assert read_key(folder) == ledger.key(spec)
    assert read_key(folder) != make_ledger(tmp_path, torch="2.1").key(spec)
    stored = json.loads((folder / "spec.json").read_text())
    del stored["libraries"]
    (folder / "spec.json").write_text(json.dumps(stored))
    # From a version that did not write them down: nobody knows what it was.
    assert read_key(folder) is None
    assert not ledger.is_current(spec)


def test_several_kinds_of_device_are_told(tmp_path):
    folders = [make_ledger(tmp_path).open(make_spec(tmp_path, number)) for number in range(3)]
    note_device(folders[0], "cpu AVX2")
    note_device(folders[1], "cpu AVX2")
    assert say_mixed_devices(folders) == ""
    note_device(folders[2], "cuda A100")
    assert ": 2 on cpu AVX2, 1 on cuda A100. " in say_mixed_devices(folders)


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
