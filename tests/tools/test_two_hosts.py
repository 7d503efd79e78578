"""A study over two hosts that are namespaces of this machine; needs root."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.references.empty_databases import find_databases
from tools.hosts import Host, NoNamespaces, check_programs

ROOT = Path(__file__).parents[2]
PROMISES = (
    "yes  trials ran on both nodes",
    "yes  the node without data fetched each part of them once",
    "yes  the trials are in the bucket and on no disk",
    "yes  MLflow has every run, each finished",
    "yes  a later host has the table from the bucket",
)
OF_THE_PAGE = "yes  the table is that of one host"
PATIENCE_SECONDS = 600.0


def explain_missing():
    """Why this machine cannot have hosts; empty if it can."""
    try:
        check_programs()
    except NoNamespaces as error:
        return str(error)
    return ""


MISSING = explain_missing()
needs_hosts = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture
def temporary():
    """A very short path: Ray's sockets lie below the folder of a host, which lies below it."""
    folder = Path(tempfile.gettempdir()) / secrets.token_hex(2)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(temporary, *options):
    return subprocess.Popen(
        [sys.executable, "-m", "tools.two_hosts", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check_nothing_left(temporary):
    assert list(temporary.iterdir()) == []
    assert [p.pid for p in psutil.process_iter() if str(temporary) in command_of(p)] == []


def command_of(process):
    try:
        return " ".join([*process.cmdline(), process.environ().get("TMPDIR", "")])
    except psutil.Error:
        return ""


def test_the_page_has_the_log_of_a_successful_run_and_no_local_path():
    page = (ROOT / "docs" / "two-hosts.md").read_text(encoding="utf-8")
    assert all(f"\n{promise}\n" in page for promise in (*PROMISES, OF_THE_PAGE))
    assert tempfile.gettempdir() not in page
    assert str(ROOT) not in page


@needs_hosts
@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.slow
def test_a_study_runs_over_two_hosts_that_share_nothing_but_a_bucket(temporary):
    process = start(temporary, "--sweep-only", "--databases", str(find_databases()))
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    assert said.splitlines()[-len(PROMISES) :] == list(PROMISES)
    check_nothing_left(temporary)


@needs_hosts
@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_leaves_no_host_behind(temporary, number):
    process = start(temporary, "--databases", str(find_databases()))
    for line in process.stdout:
        if "ray start --head" in line:
            break
    inside = [p for p in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(inside, timeout=60)
    assert len(inside) > 6
    assert alive == []
    if number == signal.SIGINT:
        assert process.returncode == 130
        check_nothing_left(temporary)


@pytest.fixture
def hosts(tmp_path):
    made = [
        Host(f"host-{name}", f"10.77.1.{number}", folder=tmp_path / name, environment=os.environ)
        for number, name in enumerate(("a", "b"), start=1)
    ]
    yield made
    for host in made:
        host.stop()


def say(host, command, folder):
    log = host.folder / f"{host.name}.log"
    assert host.popen(["sh", "-c", command], log=log, folder=folder).wait(60) == 0, log.read_text()
    return log.read_text().split()


@needs_hosts
def test_each_host_has_its_own_name_files_processes_and_address(hosts, tmp_path):
    first, second = (host.start() for host in hosts)
    first.connect(second)
    (tmp_path / "of-this-machine").touch()
    for host in hosts:
        host.seal(tmp_path)
    assert say(first, "hostname", tmp_path) == ["host-a"]
    say(second, f"touch {tmp_path}/of-b", tmp_path)
    assert say(first, f"ls {tmp_path}", tmp_path) == ["host-a.log", "hosts", "resolv.conf"]
    assert "of-b" in say(second, f"ls {tmp_path}", tmp_path)
    # Nothing else can be written to.
    refused = f"touch {ROOT}/x {Path.home()}/x /x 2>&1 | grep -c 'Read-only file system'"
    assert say(second, refused, tmp_path) == ["3"]
    assert len(say(second, "ls -d /proc/[0-9]*", tmp_path)) < 10
    reach = f"{sys.executable} -c 'import socket; print(socket.gethostbyname(\"host-b\"))'"
    assert say(first, reach, tmp_path)[-1] == "10.77.1.2"


def test_without_the_programs_or_root_it_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoNamespaces, match="apt-get install iproute2 util-linux"):
        check_programs()
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoNamespaces, match=r"the user is 1000, not root\. Run it as root"):
        check_programs()
