"""Starting and ending, with small web servers in place of the real ones."""

import os
import sys
import threading

import psutil
import pytest

from flows.servers import background
from flows.servers.background import start_servers, stop_servers
from flows.servers.connect import list_statuses
from flows.servers.plans import ServerPlan, make_address
from flows.servers.processes import is_alive
from flows.servers.record import load_records

# A parent that waits for a child, as MLflow's does; the child holds the port.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"


def plan(name, command, port):
    address = make_address("127.0.0.1", port)
    return ServerPlan(name, f"{name} server", (sys.executable, *command), address, f"{address}/")


def plan_web_server(name, port):
    web = ("-m", "http.server", "--bind", "127.0.0.1", str(port))
    return plan(name, ("-c", PARENT, *web), port)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose servers are small web servers; they are ended after the test."""
    monkeypatch.setattr(
        background, "plan_prefect", lambda folder, *, port, **_: plan_web_server("prefect", port)
    )
    monkeypatch.setattr(
        background, "plan_mlflow", lambda folder, *, port, **_: plan_web_server("mlflow", port)
    )
    yield tmp_path
    stop_servers(tmp_path)


def start(folder, messages=None, **changes):
    options = {
        "host": "127.0.0.1",
        "prefect_port": 0,
        "mlflow_port": 0,
        "with_worker": False,
        "timeout_seconds": 30,
        "on_message": (messages if messages is not None else []).append,
        **changes,
    }
    return start_servers(folder, **options)


def states(folder):
    return {status.name: status.state for status in list_statuses(folder)}


def test_servers_start_and_end_with_their_children(folder):
    records = start(folder)
    assert states(folder) == {"prefect": "up", "mlflow": "up", "worker": "down"}
    processes = [psutil.Process(record.pid) for record in records.values()]
    processes += [child for process in processes for child in process.children()]
    assert len(processes) == 4
    assert [record.name for record in stop_servers(folder)] == ["mlflow", "prefect"]
    assert not [process for process in processes if is_alive(process)]
    assert load_records(folder) == {}


def test_two_starts_at_once_make_one_set_of_servers(folder):
    found = []
    threads = [threading.Thread(target=lambda: found.append(start(folder))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == load_records(folder)


def test_a_killed_server_is_started_again_on_its_port(folder):
    before = start(folder)
    port = int(before["mlflow"].address.rpartition(":")[2])
    os.kill(before["mlflow"].pid, 9)
    os.waitpid(before["mlflow"].pid, 0)
    assert states(folder) == {"prefect": "up", "mlflow": "down", "worker": "down"}
    # Its child still holds the port, and is ended for it.
    after = start(folder, mlflow_port=port)
    assert after["prefect"] == before["prefect"]
    assert after["mlflow"].pid != before["mlflow"].pid
    assert after["mlflow"].address == before["mlflow"].address


def test_a_server_that_ends_is_reported_with_its_log_and_the_others_are_ended(folder, monkeypatch):
    command = ("-c", "print('the disk is full'); raise SystemExit(3)")
    monkeypatch.setattr(
        background, "plan_mlflow", lambda folder, *, port, **_: plan("mlflow", command, port)
    )
    with pytest.raises(ValueError, match=r"mlflow server ended while[\s\S]*disk is full"):
        start(folder)
    assert load_records(folder) == {}


def test_a_server_that_does_not_answer_is_reported(folder, monkeypatch):
    command = ("-c", "import time; print('thinking', flush=True); time.sleep(100)")
    monkeypatch.setattr(
        background, "plan_mlflow", lambda folder, *, port, **_: plan("mlflow", command, port)
    )
    with pytest.raises(ValueError, match=r"does not answer at .* after 3 s[\s\S]*thinking"):
        start(folder, timeout_seconds=3)
    assert load_records(folder) == {}


def test_equal_ports_are_refused(folder):
    with pytest.raises(ValueError, match="both 4321"):
        start(folder, prefect_port=4321, mlflow_port=4321)


def test_a_damaged_record_is_named(folder):
    (folder / ".dml").mkdir()
    (folder / ".dml" / "servers.json").write_text("{")
    with pytest.raises(ValueError, match=r"servers\.json cannot be read"):
        start(folder)
    (folder / ".dml" / "servers.json").unlink()
