import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.tracking import MlflowClient

from dml_core.studies.definition import SEARCH_SEED
from dml_core.trials.store import LocalStore
from tasks.tracking.address import DamagedDatabase, open_tracking
from tasks.tracking.sync import SweepRecorder, SweepSync
from tests.references.recorded_sweeps import FACTS, make_record, make_report, make_store, make_study


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path)


@pytest.fixture
def config(mlflow_config):
    return mlflow_config


@pytest.fixture
def make_recorder(tmp_path, config):
    recorders = []

    def make(timeout_seconds=config.timeout_seconds, **options):
        chosen = config.model_copy(update={"timeout_seconds": timeout_seconds})
        recorder = SweepRecorder(
            chosen,
            **make_store(tmp_path / "trials"),
            project=tmp_path,
            interval_seconds=0.05,
            **options,
        )
        recorders.append(recorder)
        return recorder

    yield make
    for recorder in recorders:
        recorder.close()


def kill(recorder):
    """Leaves a recorder as a killed process does: what it had not sent stays on disk."""
    recorder._is_given_up = True
    recorder._closing.set()
    recorder._thread.join()
    recorder._thread = None


def write_epochs(recorder, spec, epochs):
    """Writes epochs as a trial's worker does, before the driver hears of them."""
    folder = Path(recorder.store.location) / spec.trial_id
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(make_report(epoch)) for epoch in epochs]
    (folder / "epochs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def record_trial(recorder, spec, *, epochs=(1, 2, 3), status="finished", reason=""):
    recorder.on_trial_start(spec)
    for epoch in epochs:
        write_epochs(recorder, spec, range(1, epoch + 1))
        recorder.on_epoch(spec, make_report(epoch))
    recorder.on_trial_end(make_record(spec, status=status, reason=reason))


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def list_runs(tmp_path, config, name="dimension"):
    client = open_tracking(config, project=tmp_path).client()
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    nested = {run.data.tags["trial_id"]: run for run in runs if run not in parents}
    assert len(nested) == len(runs) - len(parents)
    return client, parents, nested


def count_epochs(client, experiment_id):
    runs = client.search_runs([experiment_id])
    return sum(len(history(client, run, "validation.map_at_r")) for run in runs)


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
        "phase": "search",
        "seed": str(SEARCH_SEED),
        "fold": "0",
        "differs": "model.embedding_dim",
        "data_hash": "c0ffee",
        "split_hash": "5b117",
        "git_commit": "1234567",
        # The name of its journal; here the trial's id stands for the key.
        "dml.key": spec.trial_id,
    }
    assert wanted.items() <= run.data.tags.items()
    assert parents[0].data.tags["dml.status"] == "finished"
    assert parents[0].data.tags["mlflow.note.content"] == "Does a larger embedding help?"


def test_each_status_of_a_trial_has_its_status_in_mlflow(tmp_path, study, config, make_recorder):
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


def test_a_stopped_sweep_resumes_in_the_same_runs(tmp_path, study, config, make_recorder):
    first, second = study.search_specs()[:2]
    stopped = make_recorder()
    parent_id = stopped.start(study, FACTS)
    record_trial(stopped, first)
    stopped.on_trial_start(second)
    write_epochs(stopped, second, [1])
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
    # The third epoch was on disk, but its driver died before it was told.
    write_epochs(killed, spec, (1, 2, 3))

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


def test_other_data_make_another_parent_run_and_leave_the_first_alone(
    tmp_path, study, config, make_recorder
):
    spec = study.search_specs()[0]
    first = make_recorder()
    old_parent = first.start(study, FACTS)
    record_trial(first, spec)
    assert first.finish({})

    changed = make_recorder()
    facts = type(FACTS)(datasets={"glyphs": ("other", "5b117")}, code="abc")
    assert changed.start(study, facts) != old_parent
    assert changed.finish({})
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


def lose_runs(client, experiment_id, runs):
    for run in runs:
        if "mlflow.parentRunId" in run.data.tags:
            client.delete_run(run.info.run_id)


def lose_parent(client, experiment_id, runs):
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    client.delete_run(parent.info.run_id)


def lose_experiment(client, experiment_id, runs):
    client.delete_experiment(experiment_id)


def lose_database(client, experiment_id, runs):
    Path(client.tracking_uri.removeprefix("sqlite:///")).unlink()


@pytest.mark.parametrize("lose", [lose_runs, lose_parent, lose_experiment, lose_database])
def test_a_record_that_is_lost_in_mid_run_is_made_again_from_the_trials_files(
    tmp_path, study, config, make_recorder, lose
):
    recorder = make_recorder(on_message=lambda _: None)
    recorder.start(study, FACTS)
    first, second, third = study.search_specs()[:3]
    record_trial(recorder, first)
    recorder.on_trial_start(second)
    write_epochs(recorder, second, (1, 2))
    recorder.on_epoch(second, make_report(2))
    client = recorder.tracking.client()
    wait_until(lambda: count_epochs(client, recorder.experiment_id) == 5)
    lose(client, recorder.experiment_id, client.search_runs([recorder.experiment_id]))
    write_epochs(recorder, second, (1, 2, 3))
    recorder.on_epoch(second, make_report(3))
    recorder.on_trial_end(make_record(second))
    record_trial(recorder, third)
    assert recorder.finish({"dim_8": {"score": 0.15}})

    client, parents, nested = list_runs(tmp_path, config)
    assert [(run.info.run_id, run.info.status) for run in parents] == [
        (recorder.parent_run_id, "FINISHED")
    ]
    assert sorted(nested) == sorted(spec.trial_id for spec in (first, second, third))
    for run in nested.values():
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == recorder.parent_run_id
        assert run.data.params["loss.name"] == "triplet"
        assert history(client, run, "train.loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
        assert run.data.metrics["score"] == 0.15
    assert [file.path for file in client.list_artifacts(recorder.parent_run_id)] == ["winners.json"]


def count_writes(monkeypatch):
    """Returns the names of the calls that change MLflow, which grows as they are made."""
    made = []
    for name in ("create_run", "log_batch", "log_text", "set_tag", "set_terminated", "update_run"):
        original = getattr(MlflowClient, name)

        def call(self, *arguments, _name=name, _original=original, **named):
            made.append(_name)
            return _original(self, *arguments, **named)

        monkeypatch.setattr(MlflowClient, name, call)
    return made


def test_syncing_a_complete_record_again_sends_nothing(
    tmp_path, study, config, make_recorder, monkeypatch
):
    specs, sent = study.search_specs(), count_writes(monkeypatch)
    recorder = make_recorder()
    recorder.start(study, FACTS)
    for spec in specs:
        record_trial(recorder, spec)
    assert recorder.finish({})
    assert sent.count("create_run") == 1 + len(specs)

    sent.clear()
    records = [make_record(spec) for spec in specs]
    sync = SweepSync(open_tracking(config, project=tmp_path), study, FACTS)
    sync.sync_finished(records, store=LocalStore(tmp_path / "trials"), winners="{}")
    assert sent == []
    # A run that is missing is all that is sent.
    _, _, nested = list_runs(tmp_path, config)
    sync.runs.client.delete_run(nested[specs[0].trial_id].info.run_id)
    sync.runs.forget()
    sync.sync_finished(records, store=LocalStore(tmp_path / "trials"), winners="{}")
    assert sent.count("create_run") == 1
    assert sorted(list_runs(tmp_path, config)[2]) == sorted(nested)


def test_a_refused_trial_is_named_and_delays_no_other(
    tmp_path, study, config, make_recorder, monkeypatch
):
    first, second = study.search_specs()[:2]
    sync_trial = SweepSync.sync_trial

    def refuse_the_first(sync, trial):
        if trial.spec.trial_id == first.trial_id:
            raise MlflowException("no such name", error_code=INVALID_PARAMETER_VALUE)
        sync_trial(sync, trial)

    monkeypatch.setattr(SweepSync, "sync_trial", refuse_the_first)
    messages = []
    recorder = make_recorder(on_message=messages.append)
    recorder.start(study, FACTS)
    record_trial(recorder, first)
    record_trial(recorder, second)
    started = time.monotonic()
    assert not recorder.finish({})
    assert time.monotonic() - started < config.timeout_seconds
    (message,) = messages
    assert f"refuses the record of 1 trial(s), such as {first.trial_id}: no such name." in message
    assert str(tmp_path / "trials") in message
    _, parents, nested = list_runs(tmp_path, config)
    assert list(nested) == [second.trial_id]
    assert [run.info.status for run in (*parents, *nested.values())] == ["FINISHED"] * 2


def test_a_database_that_is_damaged_in_mid_run_is_named_and_costs_nothing(
    tmp_path, study, config, make_recorder
):
    messages, spec = [], study.search_specs()[0]
    recorder = make_recorder(on_message=messages.append, timeout_seconds=1.0)
    recorder.start(study, FACTS)
    damaged = tmp_path / "mlflow.db"
    damaged.unlink()
    damaged.write_bytes(b"no database" * 1000)
    started = time.monotonic()
    record_trial(recorder, spec)
    assert time.monotonic() - started < 1
    assert not recorder.finish({})
    assert "does not take the record now" in messages[0]
    assert f"MLflow's record in {damaged} is not complete. Nothing is lost" in messages[-1]

    with pytest.raises(DamagedDatabase, match=r"mv mlflow\.db mlflow\.db\.damaged"):
        make_recorder().start(study, FACTS)
    damaged.rename(tmp_path / "mlflow.db.damaged")
    again = make_recorder()
    again.start(study, FACTS)
    again.on_trial_end(make_record(spec))
    assert again.finish({})
    client, _, nested = list_runs(tmp_path, config)
    assert [step for step, _ in history(client, nested[spec.trial_id], "train.loss")] == [1, 2, 3]


def test_a_callback_takes_no_time_of_the_sweep(study, make_recorder):
    recorder = make_recorder()
    recorder.start(study, FACTS)
    spec = study.search_specs()[0]
    recorder.on_trial_start(spec)
    started = time.perf_counter()
    for epoch in range(1, 101):
        recorder.on_epoch(spec, make_report(epoch))
    assert time.perf_counter() - started < 2.0
