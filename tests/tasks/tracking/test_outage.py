"""The MLflow server goes away in mid-recording and comes back."""

import json
import shutil
import time
from pathlib import Path

import pytest

from dml_core.config.pipeline import MlflowConfig
from tasks.tracking.address import open_tracking
from tasks.tracking.sync import SweepRecorder
from tests.references.mlflow_servers import MlflowServer
from tests.references.recorded_sweeps import FACTS, make_record, make_report, make_store, make_study

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


def wait_for_steps(recorder, *steps):
    """Waits until the server has these epochs of the trials; no two trials are alike here."""
    client = open_tracking(recorder.config, project=Path()).client()

    def are_there():
        return sorted(found for *_, found in steps_by_trial(client, recorder.experiment_id)) == (
            sorted(steps)
        )

    wait_for(are_there)


def tell_epochs(recorder, spec, last):
    """Writes epochs as a trial's worker does, and tells the recorder of the last one."""
    folder = Path(recorder.store.location) / spec.trial_id
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(make_report(epoch)) for epoch in range(1, last + 1)]
    (folder / "epochs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    recorder.on_epoch(spec, make_report(last))


def make_recorder(tmp_path, server, messages, *, timeout_seconds=30):
    return SweepRecorder(
        MlflowConfig(tracking_uri=server.address, timeout_seconds=timeout_seconds),
        **make_store(tmp_path / "trials"),
        project=tmp_path,
        on_message=messages.append,
        interval_seconds=0.2,
    )


def test_nothing_is_lost_or_doubled_when_the_server_goes_away(tmp_path, server):
    study, messages = make_study(tmp_path), []
    recorder = make_recorder(tmp_path, server, messages)
    recorder.start(study, FACTS)
    first, second, third = study.search_specs()[:3]
    recorder.on_trial_start(first)
    recorder.on_trial_start(second)
    tell_epochs(recorder, first, 2)
    wait_for_steps(recorder, [1, 2], [])

    server.stop()
    started = time.monotonic()
    tell_epochs(recorder, first, 3)
    recorder.on_trial_end(make_record(first))
    tell_epochs(recorder, second, 1)
    recorder.on_trial_start(third)
    tell_epochs(recorder, third, 1)
    assert time.monotonic() - started < 1
    wait_for(lambda: messages)
    assert "The sweep continues, and the record follows." in messages[0]

    server.start()
    wait_for_steps(recorder, [1, 2, 3], [1], [1])
    for spec in (second, third):
        tell_epochs(recorder, spec, 3)
        recorder.on_trial_end(make_record(spec))
    assert recorder.finish({})
    assert "answers again" in messages[1]
    client = open_tracking(recorder.config, project=tmp_path).client()
    assert steps_by_trial(client, recorder.experiment_id) == [
        (spec.trial_id, "FINISHED", [1, 2, 3])
        for spec in sorted((first, second, third), key=lambda spec: spec.trial_id)
    ]

    # Away at the very end: the record is in the trials' files, and the next sweep sends it.
    fourth = study.search_specs()[3]
    again = make_recorder(tmp_path, server, messages, timeout_seconds=3)
    again.start(study, FACTS)
    server.stop()
    again.on_trial_start(fourth)
    tell_epochs(again, fourth, 1)
    started = time.monotonic()
    assert not again.close()
    assert time.monotonic() - started < 15
    assert "is not complete. Nothing is lost: it is in" in messages[-1]

    # Read without the server, from the same database.
    local = MlflowConfig(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    last = SweepRecorder(local, **make_store(tmp_path / "trials"), project=tmp_path)
    last.start(study, FACTS)
    last.on_trial_end(make_record(fourth))
    assert last.finish({})
    client = open_tracking(local, project=tmp_path).client()
    found = steps_by_trial(client, last.experiment_id)
    assert (fourth.trial_id, "FINISHED", [1]) in found
    assert len(found) == 4


def test_a_server_that_comes_back_empty_gets_the_whole_record(
    tmp_path, server, empty_mlflow_database
):
    study, messages = make_study(tmp_path), []
    recorder = make_recorder(tmp_path, server, messages)
    lost_parent = recorder.start(study, FACTS)
    first, second = study.search_specs()[:2]
    recorder.on_trial_start(first)
    tell_epochs(recorder, first, 3)
    recorder.on_trial_end(make_record(first))
    recorder.on_trial_start(second)
    tell_epochs(recorder, second, 1)
    wait_for_steps(recorder, [1, 2, 3], [1])

    server.stop()
    for path in tmp_path.glob("mlflow.db*"):
        path.unlink()
    shutil.copy(empty_mlflow_database, tmp_path / "mlflow.db")
    server.start()
    tell_epochs(recorder, second, 3)
    recorder.on_trial_end(make_record(second))
    assert recorder.finish({"dim_8": {"score": 0.15}})
    assert recorder.parent_run_id != lost_parent
    client = open_tracking(recorder.config, project=tmp_path).client()
    parent = client.get_run(recorder.parent_run_id)
    assert (parent.info.status, parent.data.tags["stage"]) == ("FINISHED", "sweep")
    assert [file.path for file in client.list_artifacts(recorder.parent_run_id)] == ["winners.json"]
    assert steps_by_trial(client, recorder.experiment_id) == [
        (spec.trial_id, "FINISHED", [1, 2, 3])
        for spec in sorted((first, second), key=lambda spec: spec.trial_id)
    ]
