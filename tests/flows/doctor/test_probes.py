"""Probes are real processes, also those that hang or fail."""

import socket
import time

import psutil
import pytest

from flows.doctor.probes import (
    DoctorRequest,
    Probe,
    broken,
    hide_secrets,
    in_units,
    ok,
    run_probes,
    warning,
)
from tasks.study import StudyRequest

# A unique length, so that no sleeper of another test is mistaken for it.
SLEEPER = ["sleep", "617"]


def request(**values):
    return DoctorRequest(study=StudyRequest(study="main"), **{"timeout_seconds": 60, **values})


@pytest.fixture
def new_children():
    """Tells which processes of this one were started in the test and live."""
    before = set(psutil.Process().children())

    def list_new():
        now = [each for each in psutil.Process().children() if each.status() != "zombie"]
        return [each for each in now if each not in before]

    return list_new


@pytest.fixture
def silent_server():
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api"


def living_sleepers(before):
    """Returns the processes started since then that the hanging probe has started."""
    wanted = ["cmdline", "status"]
    found = [each.info | {"pid": each.pid} for each in psutil.process_iter(wanted)]
    return [
        each
        for each in found
        if each["pid"] not in before
        and each["cmdline"] == SLEEPER
        and each["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    ]


def test_a_server_that_never_answers_does_not_block_the_probe(silent_server, new_children):
    asked = request(prefect_url=silent_server, prefect_source="test", timeout_seconds=3)
    (finding,) = run_probes([Probe("prefect", "start it again")], asked)
    assert finding.state == "broken"
    assert finding.remedy
    assert new_children() == []


def test_a_probe_that_hangs_is_killed_with_its_children(tmp_path, monkeypatch, new_children):
    # A package of the same name, earlier on the path, stands for a library that hangs.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, subprocess, sys, time\n"
        "if 'flows.doctor.probe' in ' '.join(sys.orig_argv):\n"
        f"    subprocess.Popen({SLEEPER})\n"
        f"    open({str(tmp_path / 'started')!r}, 'w').close()\n"
        "    time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = {process.pid for process in psutil.process_iter()}
    (finding,) = run_probes([Probe("dvc", "check it yourself")], request(timeout_seconds=0.1))
    assert (tmp_path / "started").exists()
    assert (finding.subject, finding.state) == ("dvc", "broken")
    assert finding.message.startswith("no answer within")
    assert finding.remedy == "check it yourself"
    assert new_children() == []
    # A killed process takes a moment to end, and stays a zombie until its parent collects it.
    deadline = time.monotonic() + 20
    while (left := living_sleepers(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def test_a_failed_probe_is_reported_with_its_last_line_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("X_PASSWORD", "hunter2")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'flows.doctor.probe' in ' '.join(sys.orig_argv):\n"
        "    sys.stderr.write('cannot reach it with hunter2')\n"
        "    sys.stderr.flush(); os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (finding,) = run_probes([Probe("dvc", "look")], request())
    assert finding.state == "broken"
    assert finding.message == "could not be checked: cannot reach it with ***"


def test_no_server_is_ok():
    (finding,) = run_probes([Probe("prefect", "start it")], request())
    assert finding.state == "ok"
    assert "a run starts its own" in finding.message


def test_every_problem_must_have_a_remedy():
    assert ok("ray", "fine").remedy == ""
    for make in (broken, warning):
        with pytest.raises(AssertionError, match="no remedy for ray"):
            make("ray", "not fine", "")


def test_a_password_in_an_address_is_removed():
    finding = broken("mlflow", "http://ann:hunter2@host:5000/x refuses", "see s3://key@bucket")
    assert finding.message == "http://***@host:5000/x refuses"
    assert finding.remedy == "see s3://***@bucket"


@pytest.mark.parametrize(
    "name",
    [
        "PREFECT_API_AUTH_STRING",
        "PREFECT_API_KEY",
        "RAY_AUTH_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "MLFLOW_TRACKING_PASSWORD",
        "PGPASSWORD",
    ],
)
def test_a_secret_of_the_environment_is_removed(name):
    environment = {name: "ann:hunter2", "HOME": "/home/ann"}
    text = hide_secrets("refused: ann:hunter2 at /home/ann", environment=environment)
    assert text == "refused: *** at /home/ann"


def test_the_password_of_user_and_password_is_a_secret():
    environment = {"PREFECT_API_AUTH_STRING": "ann:hunter2"}
    assert hide_secrets("hunter2 is wrong", environment=environment) == "*** is wrong"


def test_short_values_and_paths_of_tokens_stay():
    environment = {"X_TOKEN": "1", "RAY_AUTH_TOKEN_PATH": "/etc/token"}
    assert hide_secrets("1 file at /etc/token", environment=environment) == "1 file at /etc/token"


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 1024**3, "3.0 GiB"), (2**41, "2.0 TiB")],
)
def test_bytes_are_shown_in_units(num_bytes, shown):
    assert in_units(num_bytes) == shown
