import json
import os
import shutil

import pytest
import torch

from dml_core.training.checkpoint import Checkpoint, checkpoint_path, save_checkpoint
from dml_core.trials.journal import Ledger, note_device, read_device
from dml_core.trials.key import describe_device, digest_numbers, have_equal_numbers, read_libraries
from dml_core.trials.spec import TrialSpec
from tasks.sweep.shared_trials import Origin, TrialPool, count_shared, read_origin
from tests.dml_core.trials.test_ledger import write_epochs, write_result
from tests.references.tiny_trials import tiny_config


def make_spec(root, study, *, trial_id="arm-0", **knobs):
    config = tiny_config(root, **knobs)
    return TrialSpec(trial_id, study, "arm", "search", 0, {}, config)


HERE = describe_device(torch.device("cpu"))


def make_ledger(root, study, *, code="code", data="data", libraries=None, device=HERE):
    return Ledger(
        root / "sweeps" / study,
        code=code,
        data_version=lambda config: data,
        libraries=libraries,
        expect_device=lambda config: device,
    )


def finish(ledger, spec, *, outcome="finished"):
    folder = ledger.open(spec)
    note_device(folder, HERE)
    write_epochs(folder, [0.1, 0.3])
    state = Checkpoint(spec.config, 2, model={}, loss={}, optimizer={})
    save_checkpoint(state, checkpoint_path(folder / "checkpoints", 2))
    write_result(folder, outcome, epoch=2)
    return folder


def take_over(root, spec, ledger=None):
    ledger = ledger or make_ledger(root, spec.study)
    return TrialPool(ledger, root / "sweeps").take_over(spec)


@pytest.fixture
def trained(tmp_path):
    """The folder of a trial that study `first` trained."""
    return finish(make_ledger(tmp_path, "first"), make_spec(tmp_path, "first", trial_id="x-7"))


def test_a_trial_of_another_study_is_taken_over_under_the_own_name(tmp_path, trained):
    spec = make_spec(tmp_path, "second")
    record = take_over(tmp_path, spec)
    assert (record.spec, record.status, record.score) == (spec, "finished", 0.3)
    assert record.folder == "trials/arm-0"
    assert make_ledger(tmp_path, "second").find(spec) == record
    folder = tmp_path / "sweeps" / "second" / record.folder
    assert read_origin(folder) == Origin("first", "x-7")
    assert read_device(folder) == HERE
    assert json.loads((folder / "spec.json").read_text())["spec"]["study"] == "second"
    assert read_origin(trained) is None


def test_a_copy_of_a_copy_names_the_one_that_was_trained(tmp_path, trained):
    take_over(tmp_path, make_spec(tmp_path, "second"))
    shutil.rmtree(trained)
    record = take_over(tmp_path, make_spec(tmp_path, "third"))
    assert read_origin(tmp_path / "sweeps" / "third" / record.folder) == Origin("first", "x-7")


def test_a_change_in_the_copy_leaves_the_other_as_it_was(tmp_path, trained):
    spec = make_spec(tmp_path, "second")
    take_over(tmp_path, spec)
    ledger = make_ledger(tmp_path, "second")
    with open(ledger.trial_folder(spec) / "epochs.jsonl", "a") as file:
        file.write("more\n")
    assert "more" not in (trained / "epochs.jsonl").read_text()
    ledger.forget(spec)
    assert checkpoint_path(trained / "checkpoints", 2).exists()


@pytest.mark.parametrize(
    "knobs",
    [
        {"training__loader_workers": 2},
        {"evaluation__clustering": True, "evaluation__binary": True},
        {"evaluation__occlusion": [0.3], "evaluation__kmeans_restarts": 3},
    ],
)
def test_what_no_number_of_a_training_depends_on_may_differ(tmp_path, trained, knobs):
    spec = make_spec(tmp_path, "second", **knobs)
    assert take_over(tmp_path, spec).spec.config == spec.config


@pytest.mark.parametrize(
    ("knobs", "versions"),
    [
        ({"loss__alpha": 16}, {}),
        ({"seed": 1}, {}),
        ({"evaluation__recall_at": [1]}, {}),
        ({"evaluation__class_distances": 3}, {}),
        ({}, {"code": "other"}),
        ({}, {"data": "other"}),
        ({}, {"libraries": {**read_libraries(), "torch": "other"}}),
        ({}, {"device": "other"}),
    ],
)
def test_a_trial_with_another_key_is_not_taken_over(tmp_path, trained, knobs, versions):
    spec = make_spec(tmp_path, "second", **knobs)
    assert take_over(tmp_path, spec, make_ledger(tmp_path, "second", **versions)) is None


@pytest.mark.parametrize(
    ("outcome", "is_taken"),
    [("diverged", True), ("collapsed", True), ("failed", False), ("stopped", False)],
)
def test_only_what_would_end_the_same_again_is_taken_over(tmp_path, outcome, is_taken):
    finish(make_ledger(tmp_path, "first"), make_spec(tmp_path, "first"), outcome=outcome)
    assert (take_over(tmp_path, make_spec(tmp_path, "second")) is not None) == is_taken


@pytest.mark.parametrize("name", ["result.json", "spec.json"])
@pytest.mark.parametrize("content", [None, "", '{"outcome": "fin', "[]", "{}"])
def test_half_written_folders_are_passed_over(tmp_path, trained, name, content):
    (trained / name).unlink()
    if content is not None:
        (trained / name).write_text(content)
    spec = make_spec(tmp_path, "second")
    assert take_over(tmp_path, spec) is None
    assert make_ledger(tmp_path, "second").find(spec) is None


def test_a_damaged_checkpoint_is_not_taken_over(tmp_path, trained):
    path = checkpoint_path(trained / "checkpoints", 2)
    path.write_bytes(path.read_bytes()[:100])
    assert take_over(tmp_path, make_spec(tmp_path, "second")) is None


def test_a_folder_that_became_another_trial_after_the_search_is_passed_over(tmp_path, trained):
    spec = make_spec(tmp_path, "second")
    pool = TrialPool(make_ledger(tmp_path, "second"), tmp_path / "sweeps")
    assert pool.contains(spec)
    other = make_spec(tmp_path, "first", trial_id="x-7", loss__alpha=16)
    finish(make_ledger(tmp_path, "first"), other)
    assert pool.take_over(spec) is None
    shutil.rmtree(trained)
    assert pool.take_over(spec) is None
    assert not any((tmp_path / "sweeps" / "second").glob("*/*"))


def test_a_trial_that_was_begun_here_goes_on_here(tmp_path, trained):
    ledger, spec = make_ledger(tmp_path, "second"), make_spec(tmp_path, "second")
    write_epochs(ledger.open(spec), [0.1])
    assert take_over(tmp_path, spec) is None
    assert len(ledger.epochs(spec)) == 1


def test_a_stale_trial_here_makes_room(tmp_path, trained):
    spec = make_spec(tmp_path, "second")
    finish(make_ledger(tmp_path, "second"), make_spec(tmp_path, "second", loss__alpha=16))
    (make_ledger(tmp_path, "second").trial_folder(spec) / "failure.txt").write_text("old")
    assert take_over(tmp_path, spec).score == 0.3
    assert not (make_ledger(tmp_path, "second").trial_folder(spec) / "failure.txt").exists()


def test_of_several_the_first_by_name_is_taken_whatever_came_first(tmp_path):
    for study in ("c", "a", "b"):
        finish(make_ledger(tmp_path, study), make_spec(tmp_path, study, trial_id=f"{study}-1"))
    record = take_over(tmp_path, make_spec(tmp_path, "z"))
    assert read_origin(tmp_path / "sweeps" / "z" / record.folder) == Origin("a", "a-1")


def test_without_a_version_of_the_data_only_the_own_sweep_is_searched(tmp_path):
    finish(make_ledger(tmp_path, "first", data=""), make_spec(tmp_path, "first"))
    ledger = make_ledger(tmp_path, "second", data="")
    assert take_over(tmp_path, make_spec(tmp_path, "second"), ledger) is None
    finish(ledger, make_spec(tmp_path, "second", trial_id="own-1"))
    assert take_over(tmp_path, make_spec(tmp_path, "second"), ledger) is not None


def test_a_trial_that_ends_later_is_known_once_it_is_told(tmp_path):
    ledger = make_ledger(tmp_path, "first")
    pool = TrialPool(ledger)
    spec, repeat = make_spec(tmp_path, "first"), make_spec(tmp_path, "first", trial_id="arm-seed0")
    assert pool.take_over(repeat) is None
    finish(ledger, spec)
    pool.add(ledger.find(spec))
    assert pool.take_over(repeat).spec == repeat


def test_a_disk_without_links_gets_copies(tmp_path, trained, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    record = take_over(tmp_path, make_spec(tmp_path, "second"))
    copy = checkpoint_path(tmp_path / "sweeps" / "second" / record.folder / "checkpoints", 2)
    assert copy.read_bytes() == checkpoint_path(trained / "checkpoints", 2).read_bytes()
    assert not copy.samefile(checkpoint_path(trained / "checkpoints", 2))


def test_trials_that_need_no_training_are_counted_without_changing_anything(tmp_path, trained):
    ledger = make_ledger(tmp_path, "second")
    specs = [
        make_spec(tmp_path, "second"),
        make_spec(tmp_path, "second", trial_id="arm-1", loss__alpha=16),
    ]
    assert count_shared(specs, ledger, tmp_path / "sweeps") == 1
    assert not ledger.folder.exists()
    # Those that ended here are no longer shared, but done.
    take_over(tmp_path, specs[0])
    assert count_shared(specs, ledger, tmp_path / "sweeps") == 0
    assert count_shared(specs, make_ledger(tmp_path, "third"), tmp_path / "none") == 0


def test_the_digest_of_a_stored_configuration_is_that_of_the_configuration(tmp_path):
    config = tiny_config(tmp_path, optimizer__learning_rate=1e-4, loss__alpha=16)
    stored = json.loads(json.dumps(config.model_dump(mode="json")))
    assert digest_numbers(stored) == digest_numbers(config)
    assert have_equal_numbers(
        config, tiny_config(tmp_path / "b", optimizer__learning_rate=1e-4, loss__alpha=16)
    )
    assert not have_equal_numbers(config, tiny_config(tmp_path))
