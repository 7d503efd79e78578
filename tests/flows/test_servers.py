"""Servers in the background, as `dml up`, `dml status` and `dml down` handle them."""

import os
import re
import socket
import time

import psutil
import pytest

from flows.servers.processes import find_family, is_alive
from flows.servers.record import load_records
from flows.servers.registry import use_running_servers
from tests.references.running_servers import call_api, make_project, read_status, run_dml

pytestmark = pytest.mark.integration
# The tests share their machine with others.
PATIENCE = ("--timeout", "240")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder in which the real servers run; what they leave behind is ended."""
    folder = make_project(tmp_path_factory.mktemp("servers"))
    started = run_dml(folder, "up", "--prefect-port", "0", "--mlflow-port", "0", *PATIENCE)
    assert started.returncode == 0, started.stderr
    (folder / "printed.txt").write_text(started.stdout)
    yield folder
    run_dml(folder, "down")


def families(folder):
    records = load_records(folder).values()
    return [p for record in records for p in find_family(record.pid, created=record.created)]


def test_up_prints_addresses_that_answer(project):
    printed = (project / "printed.txt").read_text()
    prefect = re.search(r"export PREFECT_API_URL=(\S+)", printed)[1]
    mlflow = re.search(r"export MLFLOW_TRACKING_URI=(\S+)", printed)[1]
    assert call_api(f"{prefect}/health") is True
    found = call_api(f"{mlflow}/api/2.0/mlflow/experiments/search", {"max_results": 1})
    assert found["experiments"][0]["name"] == "Default"


def test_status_tells_address_process_and_start(project):
    status = read_status(project)
    assert [status[name]["state"] for name in ("prefect", "mlflow", "worker")] == [
        "up",
        "up",
        "down",
    ]
    assert status["prefect"]["address"].startswith("http://127.0.0.1:")
    assert psutil.pid_exists(status["prefect"]["pid"])
    assert status["mlflow"]["since"].endswith("+00:00")
    shown = run_dml(project, "status")
    assert shown.returncode == 0
    assert status["mlflow"]["address"] in shown.stdout


def test_up_again_starts_nothing(project):
    before = read_status(project)
    again = run_dml(project, "up")
    assert again.returncode == 0
    assert "already up" in again.stdout
    assert read_status(project) == before


def test_servers_listen_on_loopback_only(project):
    pids = {process.pid for process in families(project)}
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections(kind="inet")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_commands_find_the_servers_by_themselves(project, monkeypatch):
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "PREFECT_HOME"):
        # Set first, so that what the function sets is taken back after the test.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    status = read_status(project)
    assert use_running_servers(project) == {
        "PREFECT_API_URL": f"{status['prefect']['address']}/api",
        "PREFECT_HOME": str(project.resolve() / ".dml" / "prefect"),
    }
    assert os.environ["PREFECT_API_URL"] == f"{status['prefect']['address']}/api"
    assert os.environ["MLFLOW_TRACKING_URI"] == "sqlite:///elsewhere.db"


def test_nothing_gets_into_the_home_folder(project):
    assert list((project / "home").iterdir()) == []
    assert (project / ".dml" / "prefect" / "prefect.db").exists()
    assert (project / "mlflow.db").exists()


def test_a_busy_port_is_named_with_its_holder_and_nothing_starts(tmp_path):
    folder = make_project(tmp_path / "busy")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        started = time.perf_counter()
        done = run_dml(folder, "up", "--prefect-port", "0", "--mlflow-port", str(port))
        seconds = time.perf_counter() - started
    assert done.returncode == 2
    assert f"the MLflow server cannot listen on port {port} of 127.0.0.1" in done.stderr
    assert f"process {os.getpid()} " in done.stderr
    assert f"--mlflow-port {port + 1}" in done.stderr
    assert seconds < 15
    assert load_records(folder) == {}


# The last test of the file: it ends what the others use.
def test_down_leaves_no_process_and_no_port(project):
    status, processes = read_status(project), families(project)
    assert len(processes) >= 3
    done = run_dml(project, "down")
    assert done.returncode == 0
    assert "Prefect server ended" in done.stdout
    assert not [process for process in processes if is_alive(process)]
    for name in ("prefect", "mlflow"):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(status[name]["address"].rpartition(":")[2])))
    assert not (project / ".dml" / "servers.json").exists()
    assert "nothing to end" in run_dml(project, "down").stdout
    assert {server["state"] for server in read_status(project).values()} == {"down"}
