import json
import time
from dataclasses import replace

import pytest

from tasks.adapters.mlflow_address import open_tracking
from tasks.adapters.mlflow_recorder import SweepRecorder
from tests.references.recorded_sweeps import FACTS, make_record, make_report, make_study


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path)


@pytest.fixture
def config(mlflow_config):
    return mlflow_config


@pytest.fixture
def make_recorder(tmp_path, config):
    recorders = []

    def make(**options):
        recorder = SweepRecorder(
            config, folder=tmp_path / "sweep", project=tmp_path, interval_seconds=0.05, **options
        )
        recorders.append(recorder)
        return recorder

    yield make
    for recorder in recorders:
        recorder.close()


def kill(recorder):
    """Leaves a recorder as a killed process does: what it had not sent stays on disk."""
    recorder._delivery._closing.set()
    recorder._delivery._deadline = 0.0
    recorder._delivery.join()
    recorder._delivery = None


def record_trial(recorder, spec, *, epochs=(1, 2, 3), status="finished", reason=""):
    recorder.on_trial_start(spec)
    for epoch in epochs:
        recorder.on_epoch(spec, make_report(epoch))
    recorder.on_trial_end(make_record(spec, status=status, reason=reason))


def list_runs(tmp_path, config, name="dimension"):
    client = open_tracking(config, project=tmp_path).client()
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    nested = {run.data.tags["trial_id"]: run for run in runs if run not in parents}
    assert len(nested) == len(runs) - len(parents)
    return client, parents, nested


def history(client, run, name):
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]


def test_a_sweep_is_one_parent_run_with_a_nested_run_a_trial(
    tmp_path, study, config, make_recorder
):
    recorder = make_recorder()
    parent_id = recorder.start(study, FACTS)
    for spec in study.search_specs():
        record_trial(recorder, spec)
    assert recorder.finish({"dim_8": {"values": {}, "score": 0.15}})

    client, parents, nested = list_runs(tmp_path, config)
    assert [run.info.run_id for run in parents] == [parent_id]
    assert sorted(nested) == ["dim_16-0", "dim_16-1", "dim_8-0", "dim_8-1"]
    assert {run.data.tags["mlflow.parentRunId"] for run in nested.values()} == {parent_id}
    run = nested["dim_8-1"]
    assert history(client, run, "validation.recall_at_1") == [(1, 0.1), (2, 0.2), (3, 0.1 * 3)]
    assert history(client, run, "train.loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert run.data.metrics["score"] == 0.15
    assert run.data.metrics["train.learning_rate.head"] == 0.002


def test_a_trial_has_all_params_and_the_tags_to_find_it(tmp_path, study, config, make_recorder):
    recorder = make_recorder()
    recorder.start(study, FACTS)
    spec = study.search_specs()[0]
    record_trial(recorder, spec)
    recorder.finish({})

    _, parents, nested = list_runs(tmp_path, config)
    run = nested[spec.trial_id]
    assert run.data.params["model.embedding_dim"] == "8"
    assert run.data.params["loss.name"] == "triplet"
    assert run.data.params["sampler.class_ratio"] == "null"
    assert (
        float(run.data.params["optimizer.learning_rate"]) == spec.values["optimizer.learning_rate"]
    )
    wanted = {
        "study": "dimension",
        "arm": "dim_8",
        "stage": "search",
        "seed": "0",
        "fold": "0",
        "differs": "model.embedding_dim",
        "data_hash": "c0ffee",
        "split_hash": "5b117",
        "git_commit": "1234567",
    }
    assert wanted.items() <= run.data.tags.items()
    assert parents[0].data.tags["dml.status"] == "finished"
    assert parents[0].data.tags["mlflow.note.content"] == "Does a larger embedding help?"


def test_the_ways_to_end_are_told_apart(tmp_path, study, config, make_recorder):
    ways = {
        "finished": "FINISHED",
        "pruned": "KILLED",
        "diverged": "FAILED",
        "collapsed": "FAILED",
        "failed": "FAILED",
    }
    recorder = make_recorder()
    recorder.start(study, FACTS)
    spec = study.search_specs()[0]
    for status in ways:
        reason = f"{status}: loss is nan at 'ä' \x00"
        record_trial(recorder, replace(spec, trial_id=status), status=status, reason=reason)
    recorder.finish({})
    _, _, nested = list_runs(tmp_path, config)
    assert {name: run.info.status for name, run in nested.items()} == ways
    for status, run in nested.items():
        assert run.data.tags["dml.status"] == status
        assert run.data.tags["dml.reason"] == f"{status}: loss is nan at 'ä' "


def test_a_stopped_sweep_goes_on_in_the_same_runs(tmp_path, study, config, make_recorder):
    first, second = study.search_specs()[:2]
    stopped = make_recorder()
    parent_id = stopped.start(study, FACTS)
    record_trial(stopped, first)
    stopped.on_trial_start(second)
    stopped.on_epoch(second, make_report(1))
    stopped.close()
    _, parents, nested = list_runs(tmp_path, config)
    assert parents[0].data.tags["dml.status"] == "interrupted"
    assert nested[second.trial_id].data.tags["dml.status"] == "interrupted"
    before = {name: run.info.run_id for name, run in nested.items()}
    ended_at = nested[first.trial_id].info.end_time

    resumed = make_recorder()
    assert resumed.start(study, FACTS) == parent_id
    record_trial(resumed, first)
    # The epoch before the last checkpoint is reported once more.
    record_trial(resumed, second, epochs=(1, 2, 3))
    assert resumed.finish({})
    client, parents, nested = list_runs(tmp_path, config)
    assert len(parents) == 1
    assert nested[first.trial_id].info.end_time == ended_at
    assert {name: run.info.run_id for name, run in nested.items()} == before
    for run in nested.values():
        assert run.info.status == "FINISHED"
        assert [step for step, _ in history(client, run, "train.loss")] == [1, 2, 3]
        assert history(client, run, "score") == [(0, 0.15)]


def test_a_killed_driver_loses_nothing(tmp_path, study, config, make_recorder):
    spec = study.search_specs()[0]
    killed = make_recorder()
    killed.start(study, FACTS)
    kill(killed)
    killed.on_trial_start(spec)
    killed.on_epoch(spec, make_report(1))
    folder = tmp_path / "sweep" / "trials" / spec.trial_id
    folder.mkdir(parents=True)
    # The third epoch was on disk, but its driver died before it was told.
    lines = [json.dumps(make_report(epoch)) for epoch in (1, 2, 3)]
    (folder / "epochs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    resumed = make_recorder()
    resumed.start(study, FACTS)
    resumed.on_trial_start(spec)
    resumed.on_epoch(spec, make_report(2))
    resumed.on_trial_end(make_record(spec))
    assert resumed.finish({})
    client, _, nested = list_runs(tmp_path, config)
    values = history(client, nested[spec.trial_id], "train.loss")
    assert sorted(values) == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert list((tmp_path / "sweep").glob("mlflow-*")) == []


def test_what_another_sweep_left_is_sent_to_its_own_runs(tmp_path, study, config, make_recorder):
    spec = study.search_specs()[0]
    killed = make_recorder()
    old_parent = killed.start(study, FACTS)
    kill(killed)
    record_trial(killed, spec)

    changed = make_recorder()
    facts = type(FACTS)(datasets={"glyphs": ("other", "5b117")}, code="abc")
    assert changed.start(study, facts) != old_parent
    changed.finish({})
    _, parents, nested = list_runs(tmp_path, config)
    assert len(parents) == 2
    assert nested[spec.trial_id].data.tags["mlflow.parentRunId"] == old_parent


def test_another_configuration_under_the_same_id_has_its_own_run(
    tmp_path, study, config, make_recorder
):
    recorder = make_recorder()
    recorder.start(study, FACTS)
    one = study.make_search_spec("dim_8", 0, {"optimizer.learning_rate": 0.001})
    other = study.make_search_spec("dim_8", 0, {"optimizer.learning_rate": 0.002})
    record_trial(recorder, one)
    record_trial(recorder, other)
    recorder.finish({})
    client = open_tracking(config, project=tmp_path).client()
    runs = client.search_runs([recorder.experiment_id], filter_string="tags.arm = 'dim_8'")
    rates = sorted(run.data.params["optimizer.learning_rate"] for run in runs)
    assert rates == ["0.001", "0.002"]


def test_winners_are_kept_with_the_parent_run(tmp_path, study, config, make_recorder):
    recorder = make_recorder()
    parent_id = recorder.start(study, FACTS)
    recorder.finish({"dim_8": {"values": {"optimizer.learning_rate": 0.001}}})
    client = open_tracking(config, project=tmp_path).client()
    path = client.download_artifacts(parent_id, "winners.json", str(tmp_path))
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["dim_8"]["values"]["optimizer.learning_rate"] == 0.001
    assert (tmp_path / "mlartifacts").is_dir()


def test_a_run_removed_by_hand_does_not_hold_up_the_others(tmp_path, study, config, make_recorder):
    messages = []
    recorder = make_recorder(on_message=messages.append)
    recorder.start(study, FACTS)
    first, second = study.search_specs()[:2]
    recorder.on_trial_start(first)
    recorder.on_epoch(first, make_report(1))
    deadline = time.monotonic() + 20
    while not recorder._spool.is_drained() and time.monotonic() < deadline:
        time.sleep(0.05)
    client, _, nested = list_runs(tmp_path, config)
    client.delete_run(nested[first.trial_id].info.run_id)
    recorder.on_epoch(first, make_report(2))
    record_trial(recorder, second)
    assert recorder.finish({})
    _, _, nested = list_runs(tmp_path, config)
    assert nested[second.trial_id].info.status == "FINISHED"
    assert [step for step, _ in history(client, nested[first.trial_id], "train.loss")] == [2]


def test_a_callback_takes_no_time_of_the_sweep(study, make_recorder):
    recorder = make_recorder()
    recorder.start(study, FACTS)
    spec = study.search_specs()[0]
    recorder.on_trial_start(spec)
    started = time.perf_counter()
    for epoch in range(1, 101):
        recorder.on_epoch(spec, make_report(epoch))
    assert time.perf_counter() - started < 2.0
