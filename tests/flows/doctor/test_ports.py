import os
import socket

import pytest

from flows.doctor import ports as module
from flows.doctor.ports import check_ports
from flows.servers.network import find_free_port
from flows.servers.record import ServerRecord


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_that_was_asked_for_and_is_in_use_is_broken(busy_port):
    free = find_free_port("127.0.0.1")
    prefect, mlflow = check_ports({"prefect": busy_port, "mlflow": free}, {})
    assert prefect.state == "broken"
    assert f"port {busy_port}" in prefect.message
    assert f"process {os.getpid()}" in prefect.message
    assert "dml up --prefect-port" in prefect.remedy
    assert mlflow.state == "ok"
    assert f"port {free} is free" in mlflow.message


def test_a_usual_port_that_is_in_use_is_told_and_no_fault(busy_port, monkeypatch):
    monkeypatch.setitem(module.DEFAULT_PORTS, "prefect", busy_port)
    (finding,) = check_ports({"prefect": None}, {})
    assert finding.state == "warning"


def test_a_server_that_is_up_has_its_port():
    record = ServerRecord("prefect", "Prefect server", 1, 0.0, "http://127.0.0.1:1", "", "log")
    for port in (None, 1):
        (finding,) = check_ports({"prefect": port}, {"prefect": record})
        assert finding.state == "ok"
        assert "have theirs" in finding.message


def test_another_port_than_that_of_a_server_that_is_up_is_looked_at(busy_port):
    record = ServerRecord("prefect", "Prefect server", 1, 0.0, "http://127.0.0.1:1", "", "log")
    (finding,) = check_ports({"prefect": busy_port}, {"prefect": record})
    assert finding.state == "broken"
