"""Schedules of the real flow against a real Prefect server with a real worker.

The tests are one story in order: they share the servers, whose start is the costly part.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import urllib.error
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest
import yaml

from flows.servers.processes import find_marked, is_alive
from flows.servers.record import list_active_runs, load_records
from tests.references.prefect_api import (
    read_artifacts,
    read_deployments,
    read_runs,
    read_state,
    start_run,
)
from tests.references.running_servers import (
    call_api,
    make_environment,
    prefect_variables,
    read_status,
    run_dml,
    sign_in,
    wait_for,
)
from tests.references.tiny_projects import ENDLESS, TWO_ARMS, make_project

pytestmark = pytest.mark.integration
# The tests share their machine with others, and a minute alone becomes several.
PATIENCE = ("--timeout", "240")
LONG = 400
OFTEN = TWO_ARMS.replace("seeds: [0]", "seeds: [0, 1]")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with both servers and the worker, in which one study runs every minute."""
    folder = tmp_path_factory.mktemp("schedules") / "project"
    make_project(folder, {"often": OFTEN, "slow": ENDLESS, "main": TWO_ARMS})
    try:
        started = run_dml(
            folder, "up", "--worker", "--prefect-port", "0", "--mlflow-port", "0", *PATIENCE
        )
        assert started.returncode == 0, started.stderr
        yield folder
    finally:
        # Also after a start that took too long: some of the servers may be up.
        run_dml(folder, "down", "--force")


@pytest.fixture(scope="module")
def api(project):
    return sign_in(project, f"{read_status(project)['prefect']['address']}/api")


@pytest.fixture(scope="module", autouse=True)
def often(project, api):
    """Schedules the study first of all, so that its minute passes while the other tests run."""
    scheduled = run_dml(project, "schedule", "often", "--cron", "* * * * *")
    assert scheduled.returncode == 0, scheduled.stderr
    assert "often runs by '* * * * *'" in scheduled.stdout
    assert "no worker" not in scheduled.stdout


def reaches(api, run, state):
    """Waits until a run is in a state and returns whether it got there."""
    return wait_for(lambda: read_state(api, run) == state, seconds=LONG)


def test_a_cron_schedule_gets_runs_planned(project, api):
    runs = wait_for(lambda: read_runs(api, "study-often"), seconds=LONG)
    assert runs
    assert all(run["auto_scheduled"] for run in runs)
    assert all(run["expected_start_time"][17:19] == "00" for run in runs)
    (listed,) = json.loads(run_dml(project, "schedules", "--json").stdout)["schedules"]
    assert listed["studies"] == ["often"]
    assert (listed["cron"], listed["timezone"]) == ("* * * * *", "UTC")
    assert listed["profile"] is None
    assert listed["is_active"]
    assert listed["next_run"]


def test_scheduling_again_replaces_the_time(project, api):
    for cron in ("0 3 * * *", "0 0 1 1 *"):
        done = run_dml(project, "schedule", "slow", "--cron", cron)
        assert done.returncode == 0, done.stderr
    (schedule,) = read_deployments(api)["study-slow"]["schedules"]
    assert schedule["schedule"]["cron"] == "0 0 1 1 *"


def test_without_the_password_no_run_can_be_scheduled(project, api):
    deployment = read_deployments(api)["study-slow"]
    stranger = f"{read_status(project)['prefect']['address']}/api"
    wrong = stranger.replace("http://", "http://dml:guessed@")
    state = {"type": "SCHEDULED"}
    planned = {"name": "strange", "state": state, "parameters": {"studies": ["main"]}}
    for address in (stranger, wrong):
        for path, content in (
            (f"deployments/{deployment['id']}/create_flow_run", planned),
            ("flow_runs/", {**planned, "flow_id": deployment["flow_id"]}),
            ("deployments/filter", {}),
            ("work_pools/dml/get_scheduled_flow_runs", {}),
        ):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                call_api(f"{address}/{path}", content)
    runs = call_api(f"{api}/flow_runs/filter", {"flow_runs": {"name": {"any_": ["strange"]}}})
    assert runs == []
    # The same words with the password do plan one, so late that it does not run.
    later = {"state": {**state, "state_details": {"scheduled_time": "2999-01-01T00:00:00Z"}}}
    url = f"{api}/deployments/{deployment['id']}/create_flow_run"
    assert call_api(url, {**planned, "name": "own", **later})["name"] == "own"


def test_prefect_yaml_deploys_a_nightly_and_a_weekly_run(project, api):
    shutil.copy(ROOT / "prefect.yaml", project)
    subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=project,
        env=make_environment(project, **prefect_variables(project)),
        capture_output=True,
        timeout=300,
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


def test_a_planned_run_of_the_real_flow_answers_its_study(project, api):
    def completed():
        return [run for run in read_runs(api, "study-often") if run["state_type"] == "COMPLETED"]

    assert wait_for(completed, seconds=LONG), [
        (run["state_type"], run["state"]["message"]) for run in read_runs(api, "study-often")
    ]
    assert completed()[0]["auto_scheduled"]
    assert "last Completed" in run_dml(project, "schedules").stdout
    trials = pd.read_parquet(project / "results" / "often" / "sweep" / "trials.parquet")
    assert trials["arm"].value_counts().to_dict() == {"anchor": 2, "triplet": 2}
    assert "Which of two losses?" in (project / "reports" / "often" / "index.html").read_text()
    done = yaml.safe_load((project / "dvc.lock").read_text())["stages"]
    assert set(done) == {"prepare", "sweep@often", "evaluate@often", "report@often"}
    with closing(sqlite3.connect(project / "mlflow.db")) as database:
        statuses = database.execute("select status from runs").fetchall()
    assert len(statuses) >= 2
    assert set(statuses) == {("FINISHED",)}


def test_each_stage_and_the_run_leave_a_table_with_links(project, api):
    found = read_artifacts(api)
    kinds = ("data", "sweep", "scores", "answer", "run", "watch")
    assert {f"{kind}-often" for kind in kinds} <= set(found)
    assert all(found[f"{kind}-often"]["type"] == "markdown" for kind in kinds)
    answer, run = found["answer-often"]["data"], found["run-often"]["data"]
    assert "Which of two losses?" in answer
    assert "| anchor |" in answer
    mlflow = read_status(project)["mlflow"]["address"]
    report = (project / "reports" / "often" / "index.html").resolve().as_uri()
    for text in (answer, run):
        assert report in text
        assert f"{mlflow}/#/compare-runs" in text
    assert "| anchor | 0 |" in found["sweep-often"]["data"]
    assert "| arm | seed 0 | seed 1 |" in found["scores-often"]["data"]


def test_a_run_is_named_tagged_and_logged_by_its_study_and_dml_open_finds_it(project, api):
    (newest, *_) = call_api(
        f"{api}/flow_runs/filter",
        {
            "flows": {"name": {"any_": ["ablation"]}},
            "flow_runs": {"tags": {"all_": ["study:often"]}},
            "sort": "EXPECTED_START_TIME_DESC",
        },
    )
    assert newest["name"] == "often"
    # The tag of the deployment stays.
    assert "dml-schedule" in newest["tags"]
    stages = call_api(
        f"{api}/flow_runs/filter",
        {"flows": {"name": {"any_": ["sweep"]}}, "flow_runs": {"tags": {"all_": ["study:often"]}}},
    )
    assert {run["name"] for run in stages} == {"often"}
    logged = " ".join(line["message"] for line in call_api(f"{api}/logs/filter", {}))
    assert "stage ended, sweep" in logged
    assert "trial ended, anchor-seed0" in logged
    shown = run_dml(project, "open", "often", "--print")
    assert shown.returncode == 0, shown.stderr
    report, mlflow, prefect, sign = shown.stdout.splitlines()
    page = (project / "reports" / "often" / "index.html").resolve()
    assert report.split() == ["report:", page.as_uri()]
    server = read_status(project)["mlflow"]["address"]
    assert re.fullmatch(
        rf"MLflow:  {server}/#/experiments/\d+/runs\?workflowType=machine_learning", mlflow
    )
    # The tests run it every minute, so a newer run may have begun.
    assert f"{read_status(project)['prefect']['address']}/runs/flow-run/" in prefect
    assert sign == "sign in as dml; the password is in .dml/password"


SAVE = (
    "import sys; from prefect.blocks.webhook import Webhook; Webhook(url=sys.argv[1]).save('team')"
)


@pytest.fixture
def messages(project, api):
    """What a webhook receives that is saved as a block in Prefect and named in the parameters."""
    received = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    subprocess.run(
        [sys.executable, "-c", SAVE, f"http://127.0.0.1:{server.server_port}/hook"],
        cwd=project,
        env=make_environment(project, **prefect_variables(project)),
        capture_output=True,
        timeout=300,
        check=True,
    )
    params = json.loads((project / "params.yaml").read_text())
    params["notify"] = {"block": "webhook/team"}
    (project / "params.yaml").write_text(json.dumps(params))
    yield received
    server.shutdown()
    server.server_close()


def test_a_drop_fails_the_planned_run_with_a_table_and_sends_a_notification(project, api, messages):
    file = project / "results" / ".history" / "often.jsonl"
    accepted = json.loads(file.read_text())
    assert accepted["accepted"]
    for by_seed in accepted["scores"].values():
        by_seed.update({seed: score + 0.5 + 0.01 * int(seed) for seed, score in by_seed.items()})
    file.write_text(json.dumps(accepted) + "\n")

    def failed():
        return [run for run in read_runs(api, "study-often") if run["state_type"] == "FAILED"]

    assert wait_for(failed, seconds=LONG)
    assert "often dropped: the champion changed by -50." in failed()[0]["state"]["message"]
    shown = read_artifacts(api)["watch-often"]["data"]
    assert "often dropped" in shown
    assert "| anchor" in shown
    (sent, *_) = wait_for(lambda: messages, seconds=LONG)
    assert sent["subject"] == "dml: the scheduled run of often failed"
    assert "often dropped" in sent["text"]


@pytest.mark.nightly
def test_a_plain_run_reports_a_drop_and_promote_accepts_it(project):
    plain = run_dml(project, "run", "often")
    assert plain.returncode == 0, plain.stderr
    assert "history: often dropped" in plain.stdout
    assert run_dml(project, "run", "often", "--watch").returncode == 1
    promoted = run_dml(project, "run", "often", "--watch", "--promote")
    assert promoted.returncode == 0, promoted.stderr
    assert "It is accepted, and the alias in MLflow moved to its model." in promoted.stdout
    shown = run_dml(project, "history", "often")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("accepted") == 2
    assert (project / "reports" / ".history" / "often.png").is_file()
    assert "no change" in run_dml(project, "run", "often").stdout.replace("significant ", "")
    said = run_dml(project, "plan", "often").stdout
    assert "stale stages: none" in said


def test_unscheduling_removes_the_planned_runs(project, api):
    done = run_dml(project, "unschedule", "often")
    assert done.returncode == 0, done.stderr
    assert "study-often" not in read_deployments(api)
    planned = [run for run in read_runs(api, "study-often") if run["state_type"] == "SCHEDULED"]
    assert planned == []
    assert run_dml(project, "unschedule", "nightly").returncode == 0
    again = run_dml(project, "unschedule", "often")
    assert again.returncode == 2
    assert "study 'often' is not scheduled. Scheduled are: slow, weekly." in again.stderr


def test_of_two_runs_at_once_the_newer_is_cancelled(project, api):
    first = start_run(api, "study-slow", "first")
    assert reaches(api, first, "RUNNING")
    second = start_run(api, "study-slow", "second")
    assert reaches(api, second, "CANCELLED")
    assert read_state(api, first) == "RUNNING"


def find_running(api, deployment):
    """The ids of a deployment's runs that work now."""
    return [run["id"] for run in read_runs(api, deployment) if run["state_type"] == "RUNNING"]


def has_checkpoint(project, study):
    """Whether a trial of the study has one; the store holds those of all studies."""
    results = project / "results"
    ledger = results / ".sweeps" / study / "trials.jsonl"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    keys = re.findall(r'"key": "(\w+)"', "\n".join(lines))
    return any(list((results / ".trials" / key / "checkpoints").glob("*")) for key in keys)


def test_runs_of_a_killed_worker_do_not_block_the_next(project, api):
    (left,) = find_running(api, "study-slow")
    assert wait_for(lambda: has_checkpoint(project, "slow"), seconds=LONG)
    worker = load_records(project)["worker"]
    os.kill(worker.pid, 9)
    # The run, its cluster and its trials: all of them still work.
    family = find_marked("PREFECT__WORKER_NAME", worker.worker_name)
    assert len(family) > 2
    again = run_dml(project, "up", "--worker", *PATIENCE)
    assert again.returncode == 0, again.stderr
    assert load_records(project)["worker"].pid != worker.pid
    assert [process for process in family if is_alive(process)] == []
    assert read_state(api, left) == "CRASHED"
    after = start_run(api, "study-slow", "after")
    assert reaches(api, after, "RUNNING")


# The last test of the file: it ends what the others use.
def test_down_is_refused_while_a_run_works_and_ends_it_with_force(project, api):
    (run,) = find_running(api, "study-slow")
    worker = load_records(project)["worker"]
    family = find_marked("PREFECT__WORKER_NAME", worker.worker_name)
    assert family
    # The run notes itself a moment after Prefect calls it running.
    assert wait_for(
        lambda: any(run.what.endswith(" slow") for run in list_active_runs(project)), seconds=LONG
    )
    before = load_records(project)
    refused = run_dml(project, "down")
    assert refused.returncode == 2
    assert re.search(r"in use by \d run\(s\):.* scheduled run of slow \(process", refused.stderr)
    assert "dml down --force" in refused.stderr
    assert load_records(project) == before
    assert read_state(api, run) == "RUNNING"
    ended = run_dml(project, "down", "--force")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"warning: \d run\(s\) use .* scheduled run of slow", ended.stdout)
    assert [process for process in family if is_alive(process)] == []
    # The server is gone, so the test reads its database: an open run would block the next ones.
    with closing(sqlite3.connect(project / ".dml" / "prefect" / "prefect.db")) as database:
        query = "select state_type from flow_run where id = ?"
        assert database.execute(query, [run]).fetchall() == [("CRASHED",)]
