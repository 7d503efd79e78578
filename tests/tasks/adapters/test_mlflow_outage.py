"""The MLflow server goes away in mid-recording and comes back."""

import shutil
import time

import pytest

from dml_core.config.pipeline import MlflowConfig
from tasks.adapters.mlflow_address import open_tracking
from tasks.adapters.mlflow_recorder import SweepRecorder
from tests.references.mlflow_servers import MlflowServer
from tests.references.recorded_sweeps import FACTS, make_record, make_report, make_study

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path, empty_mlflow_database):
    shutil.copy(empty_mlflow_database, tmp_path / "mlflow.db")
    server = MlflowServer(tmp_path)
    server.start()
    yield server
    server.stop()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def steps_by_trial(client, experiment_id):
    runs = client.search_runs([experiment_id])
    nested = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    return sorted(
        (
            run.data.tags["trial_id"],
            run.info.status,
            [m.step for m in client.get_metric_history(run.info.run_id, "validation.map_at_r")],
        )
        for run in nested
    )


def test_nothing_is_lost_or_doubled_when_the_server_goes_away(tmp_path, server):
    study, messages = make_study(tmp_path), []
    config = MlflowConfig(tracking_uri=server.address, timeout_seconds=30)
    recorder = SweepRecorder(
        config,
        folder=tmp_path / "sweep",
        project=tmp_path,
        on_message=messages.append,
        interval_seconds=0.2,
    )
    recorder.start(study, FACTS)
    first, second, third = study.search_specs()[:3]
    recorder.on_trial_start(first)
    recorder.on_trial_start(second)
    for epoch in (1, 2):
        recorder.on_epoch(first, make_report(epoch))
    wait_for(recorder._spool.is_drained)

    server.stop()
    started = time.monotonic()
    recorder.on_epoch(first, make_report(3))
    recorder.on_trial_end(make_record(first))
    recorder.on_epoch(second, make_report(1))
    recorder.on_trial_start(third)
    recorder.on_epoch(third, make_report(1))
    assert time.monotonic() - started < 1
    wait_for(lambda: messages)
    assert "The sweep goes on" in messages[0]

    server.start()
    wait_for(recorder._spool.is_drained)
    for spec, epochs in ((second, (2, 3)), (third, (2, 3))):
        for epoch in epochs:
            recorder.on_epoch(spec, make_report(epoch))
        recorder.on_trial_end(make_record(spec))
    assert recorder.finish({})
    assert "answers again" in messages[1]
    client = open_tracking(config, project=tmp_path).client()
    assert steps_by_trial(client, recorder.experiment_id) == [
        (spec.trial_id, "FINISHED", [1, 2, 3])
        for spec in sorted((first, second, third), key=lambda spec: spec.trial_id)
    ]

    # Away at the very end: the record waits on disk, and the next sweep sends it.
    fourth = study.search_specs()[3]
    again = SweepRecorder(
        MlflowConfig(tracking_uri=server.address, timeout_seconds=3),
        folder=tmp_path / "sweep",
        project=tmp_path,
        on_message=messages.append,
        interval_seconds=0.2,
    )
    again.start(study, FACTS)
    server.stop()
    again.on_trial_start(fourth)
    again.on_epoch(fourth, make_report(1))
    started = time.monotonic()
    assert not again.close()
    assert time.monotonic() - started < 10
    assert "The rest waits in" in messages[-1]
    assert list((tmp_path / "sweep").glob("mlflow-*.jsonl"))

    # Read without the server, from the same database.
    local = MlflowConfig(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    last = SweepRecorder(local, folder=tmp_path / "sweep", project=tmp_path)
    last.start(study, FACTS)
    last.on_trial_end(make_record(fourth))
    assert last.finish({})
    client = open_tracking(local, project=tmp_path).client()
    found = steps_by_trial(client, last.experiment_id)
    assert (fourth.trial_id, "FINISHED", [1]) in found
    assert len(found) == 4
    assert list((tmp_path / "sweep").glob("mlflow-*")) == []
