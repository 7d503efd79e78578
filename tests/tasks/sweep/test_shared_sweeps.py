"""Sweeps of studies that request the same trials, which take a second."""

import json

import pyarrow.parquet as pq
import pytest

from dml_core.config.pipeline import RayConfig
from dml_core.training.checkpoint import load_checkpoint
from tasks.sweep.cluster import connect
from tasks.sweep.run import run_sweep
from tests.references.tiny_studies import tiny_pipeline, tiny_study
from tests.references.tiny_trials import prepare_tiny

pytestmark = pytest.mark.integration

FIRST = """
question: Does a longer embedding help?
arms: {small: {model.embedding_dim: 4}, large: {model.embedding_dim: 8}}
seeds: [0]
"""
SECOND = """
question: Does a wider network help?
arms: {eight: {model.embedding_dim: 8}, wide: {model.embedding_dim: 8, model.width: 6}}
fixed: {evaluation.binary: true}
seeds: [0]
"""
COVERED = """
question: Is eight enough?
arms: {eight: {model.embedding_dim: 8}, four: {model.embedding_dim: 4}}
seeds: [0]
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    prepare_tiny(root)
    return root


def sweep(prepared, root, name, text, *, pipeline=None, **listeners):
    root.mkdir(exist_ok=True)
    sweeps = root / "results" / ".sweeps"
    study = tiny_study(prepared, root, text, name=name)
    folder = sweeps / name
    return run_sweep(study, pipeline or tiny_pipeline(), folder=folder, **listeners)


@pytest.fixture(scope="module")
def alone_and_after(prepared, tmp_path_factory):
    """The second study in an empty project, and in one where the first had run."""
    with connect(RayConfig()):
        alone = sweep(prepared, tmp_path_factory.mktemp("alone"), "second", SECOND)
        root = tmp_path_factory.mktemp("after")
        sweep(prepared, root, "first", FIRST)
        after = sweep(prepared, root, "second", SECOND)
    return alone, after, root


def read_rows(result):
    rows = pq.read_table(result.folder / "trials.parquet").to_pylist()
    return [{key: value for key, value in row.items() if key != "train_seconds"} for row in rows]


def test_a_study_after_another_has_the_trials_that_it_has_alone(alone_and_after):
    alone, after, _ = alone_and_after
    assert (alone.num_shared, after.num_shared) == (0, 1)
    assert read_rows(after) == read_rows(alone)
    assert json.loads((after.folder / "sweep.json").read_text())["shared_trials"] == 1
    winners = [(r.folder / "winners.json").read_bytes() for r in (after, alone)]
    assert winners[0] == winners[1]


def test_what_the_first_study_trained_is_not_trained_again(alone_and_after):
    _, after, root = alone_and_after
    keys = {record.spec.arm: record.key for record in after.repeat_records}
    trials = root / "results" / ".trials"
    assert json.loads((trials / keys["eight"] / "spec.json").read_text())["study"] == "first"
    assert json.loads((trials / keys["wide"] / "spec.json").read_text())["study"] == "second"
    assert len([path for path in trials.iterdir() if path.name != ".locks"]) == 3


def test_a_winner_speaks_of_the_study_that_it_is_of(alone_and_after):
    alone, after, _ = alone_and_after
    name = "winners/eight-seed0/checkpoint.pt"
    one, other = load_checkpoint(after.folder / name), load_checkpoint(alone.folder / name)
    assert one.config == other.config
    assert one.config.evaluation.binary
    assert one.model.keys() == other.model.keys()
    assert all((one.model[key] == other.model[key]).all() for key in one.model)


def test_a_study_whose_trials_are_all_there_needs_no_cluster_and_reports_each(
    prepared, alone_and_after, monkeypatch
):
    _, _, root = alone_and_after
    heard = []
    # Nothing runs, so no cluster is started.
    monkeypatch.setattr("tasks.sweep.run.connect", lambda *_, **__: pytest.fail("no need"))
    result = sweep(
        prepared,
        root,
        "covered",
        COVERED,
        on_trial_start=lambda spec: heard.append((spec.trial_id, 0)),
        on_epoch=lambda spec, epoch: heard.append((spec.trial_id, epoch["epoch"])),
        on_trial_end=lambda record: heard.append((record.spec.trial_id, record.status)),
    )
    assert result.num_shared == 2
    ended = [
        [(arm, 0), (arm, 1), (arm, 2), (arm, 3), (arm, "finished")]
        for arm in ("eight-seed0", "four-seed0")
    ]
    assert heard == [*ended[0], *ended[1]]
    # A second run still knows that another study trained them.
    assert sweep(prepared, root, "covered", COVERED).num_shared == 2
