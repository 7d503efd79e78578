"""Damaged checkpoints of winners, with every kind of good copy."""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from dml_core.config.loading import load_params, unflatten
from dml_core.data.prepared import open_development
from dml_core.measures.results import read_scores
from dml_core.training.checkpoint import DamagedCheckpoint, load_checkpoint
from dml_core.training.in_folder import train_with_journal
from dml_core.trials.journal import Journal, make_record
from dml_core.trials.store import LocalStore
from tasks.evaluate import evaluate_study
from tasks.study import StudyRequest, load_context
from tasks.sweep.run import SweepResult, write_sweep
from tasks.versioning.remote import push_data
from tasks.versioning.repo import commit_stage, stale_stages
from tasks.versioning.winners import restore_winners
from tests.references.dvc_projects import make_project
from tests.references.tiny_trials import TINY, prepare_tiny
from tests.tasks.versioning.test_restoring import cached, flip, stored

STUDY = """
question: Which seed?
arms: {anchor: {loss.name: proxy_anchor}}
fixed: {training.epochs: 2}
seeds: [0, 1]
"""
REQUEST = StudyRequest(study="tiny")
SWEEP = Path("results/tiny/sweep")
CHECKPOINT = SWEEP / "winners" / "anchor-seed1" / "checkpoint.pt"
TRIAL = Path("results/.trials/key-anchor-seed1")


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A DVC project with a swept study, committed and pushed."""
    folder = make_project(tmp_path_factory.mktemp("origin") / "project", studies=("tiny",))
    prepare_tiny(folder / "data" / "prepared")
    params = {**load_params(folder / "params.yaml"), **TINY}
    (folder / "params.yaml").write_text(json.dumps(unflatten(params)))
    (folder / "studies" / "tiny.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sweep()
        for stage in ("prepare", "sweep@tiny"):
            commit_stage(folder, stage)
        with (folder / ".dvc" / "config").open("a") as config:
            config.write("    remote = storage\n['remote \"storage\"']\n    url = ../../storage\n")
        push_data(folder, everything=True)
    return folder


def sweep():
    """Trains the repeats in their trials' folders, and makes winners of them as a sweep does."""
    context, records = load_context(REQUEST), []
    store = LocalStore(context.trials_folder)
    for spec in context.study.repeat_specs({"anchor": {}}):
        journal = Journal(store, f"key-{spec.trial_id}")
        train_with_journal(spec.config, open_development(spec.config.data), journal)
        records.append(make_record(spec, journal))
    result = SweepResult([], {}, records, context.sweep_folder)
    write_sweep(context.study, result, store, versions={})


@pytest.fixture
def project(origin, tmp_path, monkeypatch):
    """A copy of project and remote, which is the current folder."""
    shutil.copytree(origin.parent, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(tmp_path / "copy" / "project")
    return Path.cwd()


def lose_remote(project):
    (project / ".dvc" / "config").write_text("")


def break_cache(project, good):
    flip(cached(project, good))


def test_a_damaged_winner_is_evaluated_from_the_cache(project, caplog):
    good = CHECKPOINT.read_bytes()
    wanted = read_scores(evaluate_study.fn(REQUEST).parent)
    flip(CHECKPOINT)
    with caplog.at_level(logging.WARNING):
        assert read_scores(evaluate_study.fn(REQUEST).parent) == wanted
    assert f"checkpoint {CHECKPOINT}" in caplog.text
    assert "It was restored from DVC's cache." in caplog.text
    assert CHECKPOINT.read_bytes() == good
    assert stale_stages(project, ["sweep@tiny"]) == []


@pytest.mark.parametrize("damage", [flip, lambda file: os.truncate(file, 9), Path.unlink])
def test_any_damage_is_undone_from_the_remote(project, caplog, damage):
    good = CHECKPOINT.read_bytes()
    break_cache(project, CHECKPOINT)
    damage(CHECKPOINT)
    restore_winners(load_context(REQUEST))
    assert "It was restored from DVC's remote." in caplog.text
    assert CHECKPOINT.read_bytes() == good


def test_a_winner_that_dvc_has_not_comes_from_its_trial(project, caplog):
    good = load_checkpoint(CHECKPOINT)
    break_cache(project, CHECKPOINT)
    flip(stored(project.parent / "storage", CHECKPOINT))
    flip(CHECKPOINT)
    restore_winners(load_context(REQUEST))
    assert "It was restored from the trial's own folder." in caplog.text
    made = load_checkpoint(CHECKPOINT)
    assert made.config == good.config
    assert made.epoch == good.epoch
    assert stale_stages(project, ["sweep@tiny"]) == []


def test_copies_of_another_training_are_no_good_copies(project):
    lose_remote(project)
    break_cache(project, CHECKPOINT)
    (TRIAL / "epochs.jsonl").write_text('{"epoch": 2}\n')
    flip(CHECKPOINT)
    with pytest.raises(DamagedCheckpoint, match="it has another training of this trial"):
        restore_winners(load_context(REQUEST))


def test_no_good_copy_ends_with_the_command_that_trains_again(project):
    lose_remote(project)
    break_cache(project, CHECKPOINT)
    # The one before the last is whole, and not what the winner was judged by.
    flip(max((TRIAL / "checkpoints").iterdir()))
    flip(CHECKPOINT)
    with pytest.raises(DamagedCheckpoint) as raised:
        evaluate_study.fn(REQUEST)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith(f"checkpoint {CHECKPOINT}")
    assert [line.split(":")[0] for line in lines[1:4]] == [
        "  - DVC's cache",
        "  - DVC's remote",
        "  - the trial's own folder",
    ]
    assert lines[4].startswith("Run: dml run tiny")
