"""A real run in an environment full of credentials leaves none of them anywhere."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.references.mlflow_servers import MlflowServer
from tests.references.running_servers import make_environment
from tests.references.tiny_projects import TWO_ARMS, make_project

pytestmark = pytest.mark.integration
DML = Path(sys.executable).with_name("dml")
PASSWORD = "hunter2-of-mlflow"  # noqa: S105
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIA-hunter2-of-aws",
    "AWS_SECRET_ACCESS_KEY": "secret-hunter2-of-aws",
    "AWS_SESSION_TOKEN": "session-hunter2-of-aws",
    "PREFECT_API_KEY": "pnu-hunter2-of-prefect",
    "AZURE_STORAGE_CONNECTION_STRING": "AccountKey=hunter2-of-azure",
    "GITHUB_TOKEN": "ghp-hunter2-of-github",
}
ALL = [PASSWORD, *SECRETS.values()]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An MLflow server that the runs reach by an address with a password."""
    running = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = make_project(tmp_path_factory.mktemp("secrets") / "project", {"tiny": TWO_ARMS})
    # Where DVC keeps what is secret: a file that is committed nowhere.
    remote = "[core]\n    remote = far\n['remote \"far\"']\n"
    remote += f"    url = ssh://ann:{PASSWORD}@127.0.0.1:1/store\n"
    (folder / ".dvc" / "config.local").write_text(remote)
    return folder


def start(project, server, *arguments):
    address = server.address.replace("http://", f"http://ann:{PASSWORD}@")
    environment = make_environment(project, MLFLOW_TRACKING_URI=address, **SECRETS)
    command = [str(DML), *arguments]
    return subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def finish(process):
    """Waits for a command and returns what it printed; one that never ends is killed."""
    try:
        return process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, errors = process.communicate()
        pytest.fail(f"the command did not end: {printed[-1000:]} {errors[-3000:]}")


def collect_listening(process, found):
    """Gathers the addresses on which a command and all that it started listen, until it ends."""
    marker = f"{SECRETS['GITHUB_TOKEN']}"
    while process.poll() is None:
        pids = {p.pid for p in psutil.process_iter() if _has(p, marker)}
        for connection in psutil.net_connections(kind="inet"):
            if connection.pid in pids and connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.ip.removeprefix("::ffff:"))
        threading.Event().wait(1.0)


def _has(process, marker):
    try:
        return process.environ().get("GITHUB_TOKEN") == marker and process.pid != os.getpid()
    except (psutil.Error, OSError):
        return False


def find_secrets(*folders):
    """Files that hold a secret, but for the one in which DVC keeps its own."""
    wanted = [secret.encode() for secret in ALL]
    return [
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != "config.local"
        and any(secret in path.read_bytes() for secret in wanted)
    ]


def test_a_run_leaves_no_secret_and_listens_on_loopback_alone(project, server):
    running = start(project, server, "run", "tiny")
    listening = set()
    threading.Thread(target=collect_listening, args=(running, listening), daemon=True).start()
    printed, errors = finish(running)
    assert running.returncode == 0, errors[-2000:]
    assert "open:    dml open tiny\n" in printed
    answer = json.loads((project / "reports" / "tiny" / "answer.json").read_text())
    assert answer["compare_url"].startswith(f"{server.address}/#/compare-runs")
    assert [secret for secret in ALL if secret in printed + errors] == []
    assert (project / "reports" / "tiny" / "index.html").is_file()
    # Results, report, Prefect's database and settings; MLflow's database, files and log.
    assert find_secrets(project, server.folder) == []
    assert listening == {"127.0.0.1"}


def test_errors_name_no_secret(project, server):
    pushed = start(project, server, "data", "push")
    server.stop()
    failed = start(project, server, "run", "tiny", "--force", "--set", "mlflow.timeout_seconds=2")
    for process, shown in ((pushed, "ssh://***@127.0.0.1:1"), (failed, server.address)):
        printed, errors = finish(process)
        assert process.returncode != 0
        assert shown in errors
        assert [secret for secret in ALL if secret in printed + errors] == []
    assert find_secrets(project) == []
