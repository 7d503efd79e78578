"""Sweeps on a real Ray cluster of this machine, with trials of a second."""

import json

import psutil
import pytest

from dml_core.config.pipeline import RayConfig
from dml_core.training.checkpoint import load_checkpoint
from dml_core.trials.journal import read_epochs
from dml_core.trials.table import read_trials
from tasks.machine_faults import OtherCode
from tasks.sweep.cluster import connect
from tasks.sweep.job import TrialJob
from tasks.sweep.run import TooManyFailures, run_sweep
from tests.references.processes import is_alive, name_of
from tests.references.tiny_studies import TWO_ARMS, tiny_pipeline, tiny_study
from tests.references.tiny_trials import prepare_tiny

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    prepare_tiny(root)
    return root


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    with connect(RayConfig()):
        yield


def sweep(prepared, folder, text=TWO_ARMS, *, pipeline=None, knobs=None, **listeners):
    folder.mkdir(exist_ok=True)
    study = tiny_study(prepared, folder, text, **(knobs or {}))
    working_folder = folder / "results/.sweeps/tiny"
    return run_sweep(study, pipeline or tiny_pipeline(), folder=working_folder, **listeners)


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    updates = []
    return sweep(prepared, folder, on_update=updates.append), updates


def test_random_search_gives_every_arm_its_tries_and_repeats_the_winners(undisturbed):
    result, updates = undisturbed
    assert [r.spec.trial_id for r in result.search_records] == [
        "small-0", "large-0", "small-1", "large-1",
    ]  # fmt: skip
    assert [r.spec.trial_id for r in result.repeat_records] == [
        "small-seed0", "large-seed0", "small-seed1", "large-seed1",
    ]  # fmt: skip
    assert {r.status for r in [*result.search_records, *result.repeat_records]} == {"finished"}
    for arm, winner in result.winners.items():
        tries = {r.score: r.spec.values for r in result.search_records if r.spec.arm == arm}
        assert (winner.score, winner.values) == (max(tries), tries[max(tries)])
        assert (winner.spent, winner.finished) == (2, 2)
    assert (updates[-1].done, updates[-1].total, updates[-1].running) == (8, 8, 0)
    assert set(updates[-1].best) == {"small", "large"}


def test_a_winner_has_the_values_that_won_and_fresh_seeds(undisturbed):
    result, _ = undisturbed
    searched = {record.key for record in result.search_records}
    for record in result.repeat_records:
        assert record.spec.values == result.winners[record.spec.arm].values
        assert record.key not in searched
    assert {record.spec.config.seed for record in result.repeat_records} == {0, 1}


def test_the_output_has_the_table_and_the_winners_with_checkpoints(undisturbed):
    result, _ = undisturbed
    assert result.folder.parts[-3:] == ("results", "tiny", "sweep")
    records = read_trials(result.folder / "trials.parquet")
    assert records == [*result.search_records, *result.repeat_records]
    winners = json.loads((result.folder / "winners.json").read_text())
    assert winners["small"]["values"] == result.winners["small"].values
    about = json.loads((result.folder / "sweep.json").read_text())
    assert about["order_matters"] is False
    names = sorted(path.name for path in (result.folder / "winners").iterdir())
    assert names == ["large-seed0", "large-seed1", "small-seed0", "small-seed1"]
    folder = result.folder / "winners" / "small-seed1"
    assert load_checkpoint(folder / "checkpoint.pt").config == result.repeat_records[2].spec.config
    assert len(read_epochs(folder)) == 3
    assert json.loads((folder / "config.json").read_text())["model.embedding_dim"] == 4


def test_a_sweep_that_is_done_runs_nothing_again(undisturbed, prepared, monkeypatch):
    result, _ = undisturbed
    monkeypatch.setattr("tasks.sweep.run.connect", lambda config: pytest.fail("no need"))
    ended = []
    folder = result.folder.parents[2]
    again = sweep(prepared, folder, on_trial_end=lambda r: ended.append(r.spec.trial_id))
    assert len(ended) == 8
    assert again == result


CONDITIONAL = """
question: Which loss?
arms:
  anchor: {scientific: {loss.name: proxy_anchor}, nuisance: {loss.alpha: {uniform: [8, 64]}}}
  triplet: {scientific: {loss.name: triplet}, nuisance: {loss.margin: {uniform: [0.05, 0.5]}}}
searcher: tpe
trials_per_arm: 4
edge_rounds: 0
seeds: [0]
scheduler: {name: asha, grace_epochs: 1, reduction_factor: 2}
"""


def test_tpe_and_asha_search_each_arm_in_its_own_space_and_survive_a_restart(prepared, tmp_path):
    class Interrupted(Exception):
        """Stands for whatever ends a driver."""

    def interrupt(record):
        if record.spec.number == 1:
            raise Interrupted

    knobs = {"training__epochs": 4}
    with pytest.raises(Interrupted):
        sweep(prepared, tmp_path, CONDITIONAL, knobs=knobs, on_trial_end=interrupt)
    trials = tmp_path / "results/.trials"
    before = {path: path.read_text() for path in trials.glob("*/result.json")}
    lines = (tmp_path / "results/.sweeps/tiny/trials.jsonl").read_text()
    assert len(before) + lines.count('"event": "ended"') >= 2
    result = sweep(prepared, tmp_path, CONDITIONAL, knobs=knobs)
    assert all(path.read_text() == text for path, text in before.items())
    assert (tmp_path / "results/.sweeps/tiny/trials.jsonl").read_text().startswith(lines)
    for arm, key in (("anchor", "loss.alpha"), ("triplet", "loss.margin")):
        records = [r for r in result.search_records if r.spec.arm == arm]
        assert [r.spec.number for r in records] == [0, 1, 2, 3]
        assert all(set(r.spec.values) == {key} for r in records)
        pruned = [r for r in records if r.status == "pruned"]
        assert all(r.epochs in (1, 2) for r in pruned)
        assert result.winners[arm].pruned == len(pruned)
        assert result.winners[arm].values is not None
    assert any(r.status == "pruned" for r in result.search_records)
    assert json.loads((result.folder / "sweep.json").read_text())["order_matters"] is True


OUTCOMES = """
question: What can go wrong?
arms:
  sound: {}
  diverges:
    optimizer.name: sgd
    optimizer.learning_rate: 100
    loss.name: n_pair
    loss.normalize: false
    loss.scale: 1000
    training.epochs: 20
  raises: {sampler.batch_size: 400}
baseline: sound
seeds: [0]
"""


def test_a_diverging_and_a_raising_trial_are_outcomes(prepared, tmp_path):
    result = sweep(
        prepared, tmp_path, OUTCOMES, pipeline=tiny_pipeline(sweep__max_failed_fraction=0.5)
    )
    records = {r.spec.arm: r for r in result.repeat_records}
    assert {arm: r.status for arm, r in records.items()} == {
        "sound": "finished",
        "diverges": "diverged",
        "raises": "failed",
    }
    assert "Lower optimizer.learning_rate" in records["diverges"].reason
    assert "Error: " in records["raises"].reason
    assert [path.name for path in (result.folder / "winners").iterdir()] == ["sound-seed0"]


def test_too_many_failures_stop_the_sweep_and_a_fixed_one_resumes(prepared, tmp_path):
    hopeless = tiny_pipeline(
        sweep__trial_timeout_seconds=0.001, sweep__max_failed_fraction=0, sweep__max_restarts=0
    )
    with pytest.raises(TooManyFailures, match=r"trial_timeout_seconds=0\.001"):
        sweep(prepared, tmp_path, pipeline=hopeless)
    assert not (tmp_path / "results/tiny").exists()
    result = sweep(prepared, tmp_path)
    assert {r.status for r in result.search_records} == {"finished"}


def test_a_worker_that_dies_between_two_trials_costs_neither_of_them(prepared, tmp_path):
    killed = []

    def kill_idle_worker(record):
        # Tune has not yet given the worker the next trial.
        workers = [
            child
            for child in psutil.Process().children(recursive=True)
            if is_alive(child) and name_of(child).startswith("ray::Implicit")
        ]
        if record.spec.trial_id == "small-0":
            for worker in workers:
                worker.kill()
            killed.extend(workers)

    one_by_one = tiny_pipeline(ray__max_concurrent=1, sweep__max_restarts=0)
    result = sweep(prepared, tmp_path, pipeline=one_by_one, on_trial_end=kill_idle_worker)
    assert killed
    assert {r.status for r in [*result.search_records, *result.repeat_records]} == {"finished"}


def test_workers_with_other_code_stop_the_sweep_and_the_same_command_resumes(
    prepared, tmp_path, monkeypatch
):
    text = "question: q\narms: {a: {}, b: {model.embedding_dim: 4}}\nseeds: [0]\n"
    # One after the other, so that the second has not ended when the first has.
    one_by_one = tiny_pipeline(ray__max_concurrent=1)
    trials = tmp_path / "results/.trials"

    class Interrupted(Exception):
        """Stands for whatever ends a driver."""

    def interrupt(record):
        raise Interrupted

    with pytest.raises(Interrupted):
        sweep(prepared, tmp_path, text, pipeline=one_by_one, on_trial_end=interrupt)
    kept = {path: path.stat().st_mtime_ns for path in trials.glob("*/result.json")}
    assert len(kept) == 1

    with monkeypatch.context() as patched:
        # The job requires what no worker of this cluster has.
        other = lambda **job: TrialJob(**{**job, "code": "other"})  # noqa: E731
        patched.setattr("tasks.sweep.run.TrialJob", other)
        with pytest.raises(OtherCode, match=r"than the sweep was started with \(other\)"):
            sweep(prepared, tmp_path, text, pipeline=one_by_one)
    assert {path: path.stat().st_mtime_ns for path in trials.glob("*/result.json")} == kept
    assert not (tmp_path / "results/tiny").exists()

    result = sweep(prepared, tmp_path, text, pipeline=one_by_one)
    assert {r.status for r in result.repeat_records} == {"finished"}
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
