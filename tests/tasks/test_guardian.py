"""A process with a guardian, ended in several ways."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks import guardian

ROOT = Path(__file__).parents[2]
SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(600)']"
GUARDED = f"""
import subprocess, sys, time
from tasks.guardian import guarded_folder, remember_processes

earlier = subprocess.Popen({SLEEPER})
folder = guarded_folder()
(folder / "file").write_text("something")
later = subprocess.Popen({SLEEPER})
bare = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, sys, time; "
     "print(subprocess.Popen({SLEEPER}, env={{}}).pid, flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE, text=True,
)
grandchild = int(bare.stdout.readline())
remember_processes()
print(folder, earlier.pid, later.pid, bare.pid, grandchild, flush=True)
if sys.stdin.readline():
    sys.exit(3)
"""


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


@pytest.mark.parametrize("way", ["kill", "return", "exit"])
def test_children_of_a_guarded_process_end_with_it_and_its_folder_is_removed(way):
    environment = {k: v for k, v in os.environ.items() if k != "DML_GUARDED_BY"}
    guarded = subprocess.Popen(
        [sys.executable, "-c", GUARDED],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folder, earlier, *started = guarded.stdout.readline().split()
    try:
        assert Path(folder, "file").exists()
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        if way == "kill":
            guarded.send_signal(signal.SIGKILL)
        guarded.stdin.write("go\n" if way == "exit" else "")
        guarded.stdin.close()
        assert guarded.wait(timeout=60) == {"kill": -9, "return": 0, "exit": 3}[way]
        wait_for(lambda: all(is_gone(int(pid)) for pid in started))
        wait_for(lambda: not Path(folder).exists())
        assert not is_gone(int(earlier))
    finally:
        guarded.stdout.close()
        psutil.Process(int(earlier)).kill()


def test_a_process_that_ended_is_not_waited_for_although_its_parent_did_not_collect_it():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    wait_for(lambda: process.status() == psutil.STATUS_ZOMBIE)
    try:
        assert guardian.wait_for([process]) == []
    finally:
        ended.wait()


def test_an_ended_child_that_is_not_collected_does_not_hide_its_parent():
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', '']); "
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "DML_TEST_MARK": "parent"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        wait_for(lambda: child.status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(psutil.ZombieProcess):
            child.cmdline()
        found = guardian.find_guarded("DML_TEST_MARK", "parent")
        assert parent.pid in found
        assert guardian.find_left({}, "DML_TEST_MARK", "parent") == [found[parent.pid]]
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_pythons_own_guardian_is_left_to_end_by_itself():
    started = [
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(600) {note}"],
                         env={**os.environ, "DML_TEST_MARK": "here"})
        for note in ("", "# multiprocessing.resource_tracker")
    ]  # fmt: skip
    try:
        wait_for(lambda: psutil.Process(started[1].pid).cmdline()[:1] == [sys.executable])
        found = guardian.find_guarded("DML_TEST_MARK", "here")
        assert list(found) == [started[0].pid]
    finally:
        for process in started:
            process.kill()
            process.wait()
