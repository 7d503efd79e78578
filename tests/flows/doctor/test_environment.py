import os
import socket
import tomllib
from pathlib import Path

import pytest

from flows.doctor import environment
from flows.doctor.environment import (
    DEFAULT_PORTS,
    LOCK_FILE,
    PYTHONS,
    check_ports,
    check_python,
    check_sources,
    check_versions,
    find_installed_tree,
    read_lock,
)
from flows.servers.network import find_free_port
from flows.servers.record import ServerRecord

ROOT = Path(__file__).parents[3]


def test_the_required_python_is_that_of_pyproject():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    (_, first), (_, last) = PYTHONS[0], PYTHONS[-1]
    assert wanted == f">=3.{first},<3.{last + 1}"
    assert check_python().state == "ok"


def test_another_python_is_broken():
    finding = check_python((3, 14, 1))
    assert finding.state == "broken"
    assert finding.message == "Python must be 3.11 to 3.13. Got 3.14.1."
    assert "make clean setup" in finding.remedy


def test_the_installed_packages_are_those_of_the_lock(tmp_path):
    # In a folder without a lock the project's own is taken.
    finding = check_versions(tmp_path)
    assert finding.state == "ok", finding.message
    locked = read_lock((ROOT / LOCK_FILE).read_text())
    assert finding.message.startswith(f"{len(locked)} packages match {LOCK_FILE}")


def test_a_wrong_and_a_missing_package_are_named(tmp_path):
    (tmp_path / LOCK_FILE).write_text("psutil==0.0.1\nno-such-package==1.0\npytest==9\n")
    finding = check_versions(tmp_path)
    assert finding.state == "broken"
    assert finding.message.startswith("3 of 3 packages do not match")
    assert "(locked: 0.0.1)" in finding.message
    assert "no-such-package is missing (locked: 1.0)" in finding.message
    assert "make setup" in finding.remedy


def test_a_cpu_build_of_torch_needs_no_cuda_packages(tmp_path, monkeypatch):
    (tmp_path / LOCK_FILE).write_text("torch==2.14.1\ncuda-none==1\nnvidia-none==1\ntriton==1\n")
    monkeypatch.setattr(
        environment, "find_version", lambda name: "2.14.1+cpu" if name == "torch" else ""
    )
    assert check_versions(tmp_path).message.startswith("1 packages match")


def test_a_lock_is_read_with_markers_and_comments():
    text = "# all\ntorch==2.14.1 ; python_version > '3'\nray==2.60.0  # pinned\n\n"
    assert read_lock(text) == {"torch": "2.14.1", "ray": "2.60.0"}


def make_tree(folder):
    for package in ("dml_core", "tasks", "flows"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    return folder


def test_the_sources_in_use_are_named_and_others_are_a_finding(tmp_path):
    for folder in (ROOT, ROOT / "tests", tmp_path):
        finding = check_sources(folder, ROOT)
        assert (finding.subject, finding.state) == ("sources", "ok")
        assert finding.message == f"all processes of a command import {ROOT}"
    assert check_sources(ROOT, None).state == "ok"

    clone = make_tree(tmp_path / "clone")
    other = check_sources(clone, ROOT)
    assert other.state == "broken"
    assert f"imports {ROOT}, and this folder has sources too: {clone}" in other.message
    assert "make setup" in other.remedy

    borrowed = check_sources(ROOT, clone)
    assert borrowed.state == "warning"
    assert f"installed for {clone}" in borrowed.message
    assert str(ROOT) in borrowed.message
    assert "make setup" in borrowed.remedy


def test_the_tree_of_the_environment_is_found():
    found = find_installed_tree()
    assert found is None or (found / "dml_core").is_dir()


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_requested_port_in_use_is_broken(busy_port):
    free = find_free_port("127.0.0.1")
    prefect, mlflow = check_ports({"prefect": busy_port, "mlflow": free}, {})
    assert prefect.state == "broken"
    assert f"port {busy_port}" in prefect.message
    assert f"process {os.getpid()}" in prefect.message
    assert "dml up --prefect-port" in prefect.remedy
    assert mlflow.state == "ok"
    assert f"port {free} is free" in mlflow.message


def test_a_default_port_in_use_is_a_warning(busy_port, monkeypatch):
    monkeypatch.setitem(DEFAULT_PORTS, "prefect", busy_port)
    (finding,) = check_ports({"prefect": None}, {})
    assert finding.state == "warning"


def test_a_server_that_is_up_holds_its_port():
    record = ServerRecord("prefect", "Prefect server", 1, 0.0, "http://127.0.0.1:1", "", "log")
    for port in (None, 1):
        (finding,) = check_ports({"prefect": port}, {"prefect": record})
        assert finding.state == "ok"
        assert "hold their ports" in finding.message


def test_another_port_than_that_of_a_running_server_is_checked(busy_port):
    record = ServerRecord("prefect", "Prefect server", 1, 0.0, "http://127.0.0.1:1", "", "log")
    (finding,) = check_ports({"prefect": busy_port}, {"prefect": record})
    assert finding.state == "broken"
