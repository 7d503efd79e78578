"""Processes are known by pid and start time, and end with all that they started."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from flows.servers.processes import (
    end_processes,
    find_family,
    find_marked,
    find_process,
    is_alive,
    start_detached,
)

DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
)
SLEEP = "\ntime.sleep(100)"
# Its child is in its own session, like the runs of a Prefect worker.
WITH_CHILD = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'],"
    " start_new_session=True)\n"
    "print('ready', flush=True)" + SLEEP
)


@pytest.fixture
def started(tmp_path):
    """Starts Python code in the background and waits for its first line; ends it afterwards."""
    processes = []

    def start(code, **environment):
        log = tmp_path / f"{len(processes)}.log"
        process = start_detached(
            [sys.executable, "-c", code],
            environment={**os.environ, **environment},
            folder=tmp_path,
            log=log,
        )
        processes.append((process, process.create_time()))
        while not log.read_text():
            time.sleep(0.02)
        return process

    yield start
    for process, created in processes:
        end_processes(lambda p=process, c=created: find_family(p.pid, created=c), grace_seconds=0)


def test_a_reused_pid_is_another_process(started):
    process = started("print('ready', flush=True)\nimport time" + SLEEP)
    created = process.create_time()
    assert find_process(process.pid, created=created) == process
    assert find_process(process.pid, created=created - 60) is None
    # Also not by way of the session that it leads.
    assert find_family(process.pid, created=created - 60) == []
    end_processes(lambda: find_family(process.pid, created=created - 60))
    assert is_alive(process)


def test_a_process_that_ignores_sigterm_is_killed(started):
    process = started(DEAF + SLEEP)
    created = process.create_time()
    end_processes(lambda: find_family(process.pid, created=created), grace_seconds=0.3)
    assert not is_alive(process)


def test_children_in_other_sessions_end_too(started):
    process = started(WITH_CHILD)
    created, (child,) = process.create_time(), process.children()
    end_processes(lambda: find_family(process.pid, created=created))
    assert not is_alive(process)
    assert not is_alive(child)


def test_a_process_is_found_by_its_environment(started):
    process = started("print('ready', flush=True)\nimport time" + SLEEP, DML_TEST_MARK="here-7")
    assert find_marked("DML_TEST_MARK", "here-7") == [process]
    assert find_marked("DML_TEST_MARK", "elsewhere") == []


def test_a_record_from_before_the_machine_started_finds_nothing():
    assert find_family(os.getpid(), created=psutil.boot_time() - 3600) == []


def test_a_zombie_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.02)
    assert not is_alive(process)
    child.wait()
