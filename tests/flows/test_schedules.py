"""Schedules against a real Prefect server with a real worker.

The tests are one story in order: they share the servers, whose start is the costly part.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from flows.servers.processes import is_alive
from flows.servers.record import load_records
from tests.references.running_servers import (
    call_api,
    make_environment,
    make_project,
    read_status,
    run_dml,
    wait_for,
)

pytestmark = pytest.mark.integration
# The tests share their machine with others.
PATIENCE = ("--timeout", "240")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with both servers and the worker, in which one study runs every minute."""
    folder = make_project(tmp_path_factory.mktemp("schedules"))
    started = run_dml(
        folder, "up", "--worker", "--prefect-port", "0", "--mlflow-port", "0", *PATIENCE
    )
    assert started.returncode == 0, started.stderr
    # First of all, so that its minute passes while the other tests run.
    scheduled = run_dml(folder, "schedule", "often", "--cron", "* * * * *", "--profile", "smoke")
    assert scheduled.returncode == 0, scheduled.stderr
    assert "often runs by '* * * * *'" in scheduled.stdout
    assert "no worker" not in scheduled.stdout
    yield folder
    run_dml(folder, "down")


@pytest.fixture(scope="module")
def api(project):
    return f"{read_status(project)['prefect']['address']}/api"


def read_deployments(api):
    return {d["name"]: d for d in call_api(f"{api}/deployments/filter", {})}


def read_runs(api, deployment):
    wanted = {"deployments": {"name": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC"}
    return call_api(f"{api}/flow_runs/filter", wanted)


def start_run(api, deployment, name, **parameters):
    found = read_deployments(api)[deployment]
    content = {"name": name, "parameters": parameters, "state": {"type": "SCHEDULED"}}
    return call_api(f"{api}/deployments/{found['id']}/create_flow_run", content)["id"]


def read_state(api, run):
    return call_api(f"{api}/flow_runs/{run}")["state"]


def test_a_cron_schedule_gets_runs_planned(project, api):
    runs = wait_for(lambda: read_runs(api, "study-often"), seconds=30)
    assert runs
    assert all(run["auto_scheduled"] for run in runs)
    assert all(run["expected_start_time"][17:19] == "00" for run in runs)
    (listed,) = json.loads(run_dml(project, "schedules", "--json").stdout)["schedules"]
    assert listed["studies"] == ["often"]
    assert (listed["cron"], listed["timezone"]) == ("* * * * *", "UTC")
    assert listed["profile"] == "smoke"
    assert listed["is_active"]
    assert listed["next_run"]


def test_scheduling_again_replaces_the_time(project, api):
    for cron in ("0 3 * * *", "0 0 1 1 *"):
        assert run_dml(project, "schedule", "slow", "--cron", cron).returncode == 0
    (schedule,) = read_deployments(api)["study-slow"]["schedules"]
    assert schedule["schedule"]["cron"] == "0 0 1 1 *"


def test_of_two_runs_at_once_the_newer_is_cancelled(project, api):
    first = start_run(api, "study-slow", "first", studies=["slow"], seconds=100)
    wait_for(lambda: read_state(api, first)["type"] == "RUNNING", seconds=60)
    second = start_run(api, "study-slow", "second", studies=["slow"], seconds=100)
    wait_for(lambda: read_state(api, second)["type"] == "CANCELLED", seconds=30)
    assert read_state(api, second)["type"] == "CANCELLED"
    assert read_state(api, first)["type"] == "RUNNING"


def test_runs_of_a_killed_worker_do_not_block_the_next(project, api):
    (left,) = [run["id"] for run in read_runs(api, "study-slow") if run["name"] == "first"]
    worker = load_records(project)["worker"]
    os.kill(worker.pid, 9)
    again = run_dml(project, "up", "--worker")
    assert again.returncode == 0, again.stderr
    assert load_records(project)["worker"].pid != worker.pid
    assert read_state(api, left)["type"] == "CRASHED"
    after = start_run(api, "study-slow", "after", studies=["slow"])
    wait_for(lambda: read_state(api, after)["type"] == "COMPLETED", seconds=60)
    assert read_state(api, after)["type"] == "COMPLETED"


def test_prefect_yaml_deploys_a_nightly_and_a_weekly_run(project, api):
    shutil.copy(ROOT / "prefect.yaml", project)
    home = str(project / ".dml" / "prefect")
    subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=project,
        env=make_environment(project, PREFECT_API_URL=api, PREFECT_HOME=home),
        capture_output=True,
        timeout=120,
        check=True,
    )
    found = read_deployments(api)
    for name in ("nightly", "weekly", "study-often"):
        deployment = found[name]
        assert deployment["schedules"][0]["schedule"]["timezone"] == "UTC"
        assert deployment["global_concurrency_limit"]["limit"] == 1
        assert deployment["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        assert deployment["work_pool_name"] == "dml"
    assert found["nightly"]["entrypoint"] == found["study-often"]["entrypoint"]
    assert found["nightly"]["parameters"] == {"studies": ["main"]}
    listed = run_dml(project, "schedules").stdout
    assert "nightly" in listed
    assert "main, by '0 2 * * *' UTC" in listed


def test_a_planned_run_completes_by_itself(project, api):
    def completed():
        return [run for run in read_runs(api, "study-often") if run["state_type"] == "COMPLETED"]

    assert wait_for(completed, seconds=90)
    assert completed()[0]["auto_scheduled"]
    assert f"['often'] smoke {project.resolve()}" in (project / "ran.txt").read_text()
    assert "last Completed" in run_dml(project, "schedules").stdout


def test_unscheduling_removes_the_planned_runs(project, api):
    done = run_dml(project, "unschedule", "often")
    assert done.returncode == 0, done.stderr
    assert "study-often" not in read_deployments(api)
    planned = [run for run in read_runs(api, "study-often") if run["state_type"] == "SCHEDULED"]
    assert planned == []
    assert run_dml(project, "unschedule", "nightly").returncode == 0
    again = run_dml(project, "unschedule", "often")
    assert again.returncode == 2
    assert "study 'often' is not scheduled. What is scheduled: slow, weekly." in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["often", "--cron", "61 * * * *"], "--cron '61 * * * *' never comes due"),
        (["offen", "--cron", "0 2 * * *"], "Did you mean 'often'?"),
    ],
)
def test_mistakes_in_a_schedule_are_told(project, arguments, message):
    done = run_dml(project, "schedule", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_server_the_message_says_how_to_get_one(tmp_path):
    folder = make_project(tmp_path / "alone")
    done = run_dml(folder, "schedule", "often", "--cron", "0 2 * * *")
    assert done.returncode == 2
    assert "Run: dml up --worker" in done.stderr
    gone = "http://user:secret@127.0.0.1:9/api"
    done = run_dml(folder, "schedules", PREFECT_API_URL=gone)
    assert done.returncode == 2
    assert "the Prefect server at http://127.0.0.1:9/api" in done.stderr
    assert "secret" not in done.stderr


# The last test of the file: it ends what the others use.
def test_down_ends_a_run_that_still_works(project, api):
    run = start_run(api, "study-slow", "last", studies=["slow"], seconds=100)
    assert wait_for(lambda: read_state(api, run)["type"] == "RUNNING", seconds=60)
    worker = psutil.Process(load_records(project)["worker"].pid)
    processes = [worker, *worker.children(recursive=True)]
    assert len(processes) > 1
    assert run_dml(project, "down").returncode == 0
    assert not [process for process in processes if is_alive(process)]
    # With the server gone, its database still tells; open, the run would block the next ones.
    with closing(sqlite3.connect(project / ".dml" / "prefect" / "prefect.db")) as database:
        query = "select state_type from flow_run where name = 'last'"
        assert database.execute(query).fetchall() == [("CRASHED",)]
