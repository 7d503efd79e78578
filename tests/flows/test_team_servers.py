"""The servers of a team: PostgreSQL behind both, TLS before them, users, and two workers.

The tests are one story in order: they share the servers, whose start is the costly part.
"""

import json
import subprocess
import sys
import time

import pandas as pd
import pytest

from tests.references.postgres_servers import postgres_server
from tests.references.prefect_api import read_state, start_run
from tests.references.processes import kill_tree
from tests.references.running_servers import (
    call_api,
    make_environment,
    read_status,
    run_dml,
    sign_in,
    wait_for,
)
from tests.references.server_routes import ask, find_open, mlflow_routes, prefect_routes
from tests.references.tiny_projects import TWO_ARMS, make_project
from tests.references.tls_proxies import NAME, tls_proxy

pytestmark = pytest.mark.integration
LONG = 400
# Long enough that the database can be killed while trials work.
LONGER = TWO_ARMS + "fixed: {training.epochs: 60}\n"
STUDIES = {"first": LONGER, "second": LONGER.replace("seeds: [0]", "seeds: [1]")}


@pytest.fixture(scope="module")
def database():
    with postgres_server("prefect", "mlflow") as server:
        yield server


@pytest.fixture(scope="module")
def project(tmp_path_factory, database):
    """A project whose servers keep their records in PostgreSQL."""
    folder = make_project(tmp_path_factory.mktemp("team") / "project", STUDIES)
    addresses = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.address("prefect", driver="asyncpg"),
        "MLFLOW_BACKEND_STORE_URI": database.address("mlflow", driver="psycopg2"),
    }
    free = ("--prefect-port", "0", "--mlflow-port", "0", "--timeout", "240")
    try:
        started = run_dml(folder, "up", "--public-name", NAME, *free, **addresses)
        assert started.returncode == 0, started.stderr
        yield folder
    finally:
        run_dml(folder, "down", "--force")


@pytest.fixture(scope="module")
def password(project):
    return (project / ".dml" / "password").read_text().strip()


@pytest.fixture(scope="module")
def proxy(project, tmp_path_factory):
    status = read_status(project)
    addresses = {name: status[name]["address"] for name in ("prefect", "mlflow")}
    with tls_proxy(tmp_path_factory.mktemp("proxy"), **addresses) as found:
        yield found


@pytest.fixture(scope="module")
def by_files(project, proxy):
    """What a program on another machine has: addresses, the proxy's issuer, and password files."""
    file = str(project / ".dml" / "password")
    return {
        "PREFECT_API_URL": f"{proxy.prefect}/api",
        "MLFLOW_TRACKING_URI": proxy.mlflow,
        "PREFECT_API_AUTH_STRING_FILE": file,
        "MLFLOW_TRACKING_PASSWORD_FILE": file,
        **proxy.variables,
    }


def test_a_stranger_gets_401_everywhere_through_the_proxy(proxy, password):
    prefect = prefect_routes(proxy.prefect, password, trusts=proxy.trust)
    mlflow = mlflow_routes(proxy.mlflow)
    assert len(prefect) > 100
    assert len(mlflow) > 300
    assert find_open([*prefect, *mlflow], trusts=proxy.trust) == []
    some = [*prefect[:3], *mlflow[:3]]
    assert find_open(some, sign_in_as="dml:guessed", trusts=proxy.trust) == []
    assert len(find_open(some, sign_in_as=f"dml:{password}", trusts=proxy.trust)) == len(some)


def test_the_proxy_encrypts_and_does_not_log_the_password(proxy, password):
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(f"{proxy.mlflow}/health")
    plain = proxy.mlflow.replace("https://", "http://")
    status, headers, _ = ask(
        f"{proxy.mlflow}/version", sign_in_as=f"dml:{password}", trusts=proxy.trust
    )
    assert (status, headers["Strict-Transport-Security"]) == (200, "max-age=31536000")
    assert ask(f"{plain}/version", sign_in_as=f"dml:{password}")[0] == 400
    assert "handled request" in proxy.log.read_text()
    assert password not in proxy.log.read_text()


def test_mlflows_own_pages_work_behind_the_proxy_and_others_get_nothing(proxy, password):
    create = f"{proxy.mlflow}/api/2.0/mlflow/experiments/create"
    asked = {"method": "POST", "sign_in_as": f"dml:{password}", "trusts": proxy.trust}
    # 400: the request reached MLflow, and has no name for the experiment.
    assert ask(create, Origin=proxy.mlflow, **asked)[0] == 400
    assert ask(create, Origin="https://evil.example", **asked)[0] == 403


def test_a_user_reads_everything_and_changes_only_what_is_theirs(project, proxy):
    added = run_dml(project, "users", "--add", "ana")
    assert added.returncode == 0, added.stderr
    file = project / ".dml" / "users" / "ana"
    secret = file.read_text().strip()
    assert (file.stat().st_mode & 0o777, secret in added.stdout) == (0o600, False)
    assert json.loads(run_dml(project, "users", "--json").stdout)["users"] == ["ana", "dml"]
    again = run_dml(project, "users", "--add", "ana")
    assert (again.returncode, "already has a user 'ana'" in again.stderr) == (2, True)

    mlflow = read_status(project)["mlflow"]["address"] + "/api/2.0/mlflow"
    ana = mlflow.replace("://", f"://ana:{secret}@")
    owner = sign_in(project, mlflow)
    theirs = call_api(f"{owner}/experiments/create", {"name": "of the team"})["experiment_id"]
    assert call_api(f"{ana}/experiments/get?experiment_id={theirs}")["experiment"]
    denied = ask(f"{mlflow}/experiments/delete", method="POST", sign_in_as=f"ana:{secret}")
    assert denied[0] in (400, 403)
    with pytest.raises(OSError, match="403"):
        call_api(f"{ana}/runs/create", {"experiment_id": theirs})
    mine = call_api(f"{ana}/experiments/create", {"name": "of ana"})["experiment_id"]
    assert call_api(f"{ana}/runs/create", {"experiment_id": mine})["run"]

    assert run_dml(project, "users", "--remove", "ana").returncode == 0
    with pytest.raises(OSError, match="401"):
        call_api(f"{ana}/experiments/get?experiment_id={theirs}")
    assert not file.exists()
    gone = run_dml(project, "users", "--remove", "ana")
    assert (gone.returncode, "has no user 'ana'. It has: dml" in gone.stderr) == (2, True)


@pytest.fixture(scope="module")
def workers(project, by_files, password):
    """Two workers that reach the servers through the proxy, each for one run at a time."""
    variables = {
        **by_files,
        "PREFECT_API_AUTH_STRING": f"dml:{password}",
        "MLFLOW_TRACKING_USERNAME": "dml",
        "MLFLOW_TRACKING_PASSWORD": password,
        "PREFECT_HOME": str(project / ".dml" / "prefect"),
    }
    started = []
    for name in ("one", "two"):
        flags = ("--pool", "dml", "--type", "process", "--name", name, "--limit", "1")
        with open(project / f"worker-{name}.log", "wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "prefect", "worker", "start", *flags],
                    cwd=project,
                    env=make_environment(project, **variables),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    yield
    for process in started:
        kill_tree(process.pid)
        process.wait()


def has_epochs(project):
    return any((project / "results" / ".trials").glob("*/epochs.jsonl"))


@pytest.mark.nightly
def test_two_studies_of_two_workers_survive_the_death_of_the_database(
    project, by_files, workers, database
):
    # Signs in by a file, as a nightly run does.
    for study in STUDIES:
        done = run_dml(project, "schedule", study, "--cron", "0 0 1 1 *", **by_files)
        assert done.returncode == 0, done.stderr
    api = sign_in(project, f"{read_status(project)['prefect']['address']}/api")
    runs = [start_run(api, f"study-{study}", study) for study in STUDIES]
    assert wait_for(lambda: has_epochs(project), seconds=LONG)
    database.kill()
    time.sleep(2)
    database.start()

    def ended():
        states = [read_state(api, run) for run in runs]
        return states if not {"RUNNING", "PENDING", "SCHEDULED"} & set(states) else None

    assert wait_for(ended, seconds=LONG) == ["COMPLETED", "COMPLETED"]
    mlflow = sign_in(project, read_status(project)["mlflow"]["address"] + "/api/2.0/mlflow")
    experiments = call_api(f"{mlflow}/experiments/search", {"max_results": 100})["experiments"]
    # Without those that the test above has made.
    ids = [each["experiment_id"] for each in experiments if not each["name"].startswith("of ")]
    recorded = call_api(f"{mlflow}/runs/search", {"experiment_ids": ids, "max_results": 500})[
        "runs"
    ]
    for study in STUDIES:
        trials = pd.read_parquet(project / "results" / study / "sweep" / "trials.parquet")
        assert set(trials["status"]) == {"finished"}
    assert {run["info"]["status"] for run in recorded} == {"FINISHED"}
    names = {run["info"]["run_name"] for run in recorded}
    assert {"anchor-seed0", "triplet-seed0", "anchor-seed1", "triplet-seed1"} <= names
    logs = [*(project / ".dml" / "logs").glob("*.log"), *project.glob("worker-*.log")]
    assert [path for path in logs if "database is locked" in path.read_text(errors="replace")] == []
