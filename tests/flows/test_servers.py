"""Servers in the background, as `dml up`, `dml status` and `dml down` handle them."""

import json
import os
import re
import socket
import stat
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from flows.servers.connect import use_running_servers
from flows.servers.processes import find_family, is_alive
from flows.servers.record import load_records
from tests.references.running_servers import (
    call_api,
    make_project,
    read_status,
    run_dml,
    sign_in,
)
from tests.references.server_routes import ask, find_open, mlflow_routes, prefect_routes

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


@pytest.fixture(scope="module")
def addresses(project):
    """Address of each server without a password, by name."""
    status = read_status(project)
    return {name: status[name]["address"] for name in ("prefect", "mlflow")}


@pytest.fixture(scope="module")
def password(project):
    return (project / ".dml" / "password").read_text().strip()


def families(folder):
    records = load_records(folder).values()
    return [p for record in records for p in find_family(record.pid, created=record.created)]


def test_up_prints_addresses_that_answer(project):
    printed = (project / "printed.txt").read_text()
    prefect = re.search(r"export PREFECT_API_URL=(\S+)", printed)[1]
    mlflow = re.search(r"export MLFLOW_TRACKING_URI=(\S+)", printed)[1]
    assert call_api(f"{prefect}/health") is True
    found = call_api(
        f"{sign_in(project, mlflow)}/api/2.0/mlflow/experiments/search", {"max_results": 1}
    )
    assert found["experiments"][0]["name"] == "Default"


def test_status_shows_address_process_and_start(project):
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


def test_commands_find_the_servers_by_themselves(project, password, monkeypatch):
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME"):
        # Set first, so that what the function sets is taken back after the test.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    status = read_status(project)
    assert use_running_servers(project) == {
        "PREFECT_API_URL": f"{status['prefect']['address']}/api",
        "PREFECT_API_AUTH_STRING": f"dml:{password}",
        "PREFECT_HOME": str(project.resolve() / ".dml" / "prefect"),
    }
    assert os.environ["PREFECT_API_URL"] == f"{status['prefect']['address']}/api"
    assert os.environ["MLFLOW_TRACKING_URI"] == "sqlite:///elsewhere.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    found = use_running_servers(project)["MLFLOW_TRACKING_URI"]
    assert found == sign_in(project, status["mlflow"]["address"])


def test_nothing_gets_into_the_home_folder(project):
    assert list((project / "home").iterdir()) == []
    assert (project / ".dml" / "prefect" / "prefect.db").exists()
    assert (project / "mlflow.db").exists()


def test_without_the_password_no_route_of_either_server_answers(addresses, password):
    prefect = prefect_routes(addresses["prefect"], password)
    mlflow = mlflow_routes(addresses["mlflow"])
    assert len(prefect) > 100
    assert len(mlflow) > 300
    for wrong in (None, "dml:", "admin:password1234", f"x{password}:"):
        asked = [*prefect, *mlflow] if wrong is None else [prefect[0], prefect[-1], mlflow[-1]]
        assert find_open(asked, sign_in_as=wrong) == []
    for url in {url for url, _ in mlflow if url.endswith("/server-info")}:
        names = set(json.loads(ask(url)[2]))
        assert all(re.search(r"_enabled$|_supported$|^store_type$", name) for name in names)
    assert ask(f"{addresses['prefect']}/api/version", sign_in_as=f"dml:{password}")[0] == 200
    assert ask(f"{addresses['mlflow']}/version", sign_in_as=f"dml:{password}")[0] == 200


@pytest.mark.parametrize(
    "path", ["events/in", "events/out", "logs/out", "task_runs/subscriptions/scheduled"]
)
def test_web_sockets_require_the_password(addresses, password, path):
    url = f"{addresses['prefect'].replace('http', 'ws')}/api/{path}"
    with pytest.raises(InvalidStatus, match="403"):
        connect(url, proxy=None)
    for message in (
        {"type": "filter", "filter": {}},
        {"type": "auth"},
        {"type": "auth", "token": "dml:wrong"},
    ):
        with connect(url, subprotocols=["prefect"], proxy=None) as web_socket:
            web_socket.send(json.dumps(message))
            with pytest.raises(ConnectionClosed) as caught:
                web_socket.recv(timeout=60)
        assert caught.value.rcvd.code == 1008
    with connect(url, subprotocols=["prefect"], proxy=None) as web_socket:
        web_socket.send(json.dumps({"type": "auth", "token": f"dml:{password}"}))
        assert json.loads(web_socket.recv(timeout=60))["type"] == "auth_success"


def test_a_page_of_another_origin_or_host_gets_nothing(addresses, password):
    user, far = f"dml:{password}", "http://evil.example"
    prefect, mlflow = addresses["prefect"], addresses["mlflow"]
    allowed = "Access-Control-Allow-Origin"
    asked = {"method": "OPTIONS", "Access-Control-Request-Method": "POST"}
    for url in (f"{prefect}/api/flows/filter", f"{mlflow}/api/2.0/mlflow/runs/search"):
        for origin in (far, "null"):
            # The browser asks first whether a page may send what signs in.
            assert ask(url, Origin=origin, **asked)[1].get(allowed) in (None, prefect)
    own = ask(f"{prefect}/api/version", sign_in_as=user, Origin=prefect)
    other = ask(f"{prefect}/api/version", sign_in_as=user, Origin=far)
    assert (own[1].get(allowed), other[1].get(allowed)) == (prefect, None)
    # A page that sends along what the browser has stored changes nothing.
    create = f"{mlflow}/api/2.0/mlflow/experiments/create"
    assert ask(create, method="POST", sign_in_as=user, Origin=far)[0] == 403
    # A name that was made to lead to this machine.
    search = f"{mlflow}/api/2.0/mlflow/experiments/search?max_results=1"
    assert ask(search, sign_in_as=user)[0] == 200
    assert ask(search, sign_in_as=user, Host="evil.example")[0] == 403
    assert ask(f"{prefect}/api/version", Host="evil.example")[0] == 401


def as_nobody(*command, folder):
    # The tests' own folder is closed to others already; this one is not about it.
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    return subprocess.run(
        command, cwd=folder, user="nobody", group="nogroup", extra_groups=[], env={},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
def test_another_user_reads_no_database_log_or_password_and_runs_nothing(project, addresses):
    assert as_nobody("/bin/cat", "printed.txt", folder=project).returncode == 0
    wanted = [path for path in (project / ".dml").rglob("*") if path.is_file()]
    wanted += [project / "mlflow.db", *(project / "mlartifacts").rglob("*")]
    names = {path.name for path in wanted}
    assert {"password", "prefect.db", "mlflow.db", "mlflow-users.db", "prefect.log"} <= names
    for path in wanted:
        read = as_nobody("/bin/cat", str(path), folder=project)
        assert read.returncode != 0, path
        assert "Permission denied" in read.stderr
    for record in load_records(project).values():
        read = as_nobody("/bin/cat", f"/proc/{record.pid}/environ", folder=project)
        assert read.returncode != 0
    for url in (
        f"{addresses['prefect']}/api/work_pools/",
        f"{addresses['mlflow']}/api/2.0/mlflow/experiments/create",
    ):
        asked = ("/usr/bin/curl", "-s", "-w", "%{http_code}", "-d", '{"name": "x"}', url)
        assert as_nobody(*asked, folder=project).stdout[-3:] == "401"


def test_the_password_stands_in_its_file_alone(project, password):
    run_dml(project, "status")
    holders = [
        path.relative_to(project)
        for path in project.rglob("*")
        if path.is_file() and password.encode() in path.read_bytes()
    ]
    assert holders == [Path(".dml/password")]
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert any("basic-auth" in line for line in lines)
    assert [line for line in lines if any(password in word for word in line)] == []


def test_databases_logs_and_the_password_are_the_owners_alone(project):
    closed = [project / "mlflow.db", project / "mlartifacts", project / ".dml"]
    closed += (project / ".dml").rglob("*")
    names = {path.name for path in closed}
    assert {"password", "prefect.db", "mlflow-users.db", "prefect.log", "servers.json"} <= names
    open_ones = [path for path in closed if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_ones == []


def test_a_proxy_of_the_environment_does_not_come_between(project):
    # No server listens there, so each request to it fails.
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{holder.getsockname()[1]}"
        names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY")
        variables = {**dict.fromkeys(names, proxy), "no_proxy": "", "NO_PROXY": ""}
        shown = run_dml(project, "status", **variables)
        assert shown.returncode == 0, shown.stdout
        # Prefect's own client, with its own reading of the environment.
        listed = run_dml(project, "schedules", "--json", **variables)
    assert listed.returncode == 0, listed.stderr
    assert json.loads(listed.stdout)["schedules"] == []


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
