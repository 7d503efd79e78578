import os
import signal
import subprocess
import sys
import time

import pytest

from tasks.sweep.watchdog import Watchdog

PROGRAM = """
import sys, time
from pathlib import Path
from tasks.sweep.watchdog import Watchdog

with Watchdog(float(sys.argv[1]), note=Path(sys.argv[2]), reason="it hung") as dog:
    {body}
print("went on")
"""


def run_watched(folder, body, *, seconds):
    """Runs a program whose body is watched; returns its exit code, what it printed, the note."""
    note = folder / "note"
    program = PROGRAM.format(body=body)
    run = subprocess.run(
        [sys.executable, "-c", program, str(seconds), str(note)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return run.returncode, run.stdout, note.read_text() if note.exists() else ""


def test_a_process_that_hangs_is_killed_and_the_reason_is_kept(tmp_path):
    code, printed, note = run_watched(tmp_path, "time.sleep(600)", seconds=0.05)
    assert (code, printed, note) == (-signal.SIGKILL, "", "it hung")


def test_a_stopped_process_is_killed_too(tmp_path):
    body = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    assert run_watched(tmp_path, body, seconds=0.05) == (-signal.SIGKILL, "", "it hung")


def test_a_node_without_the_drivers_folder_kills_the_process_too(tmp_path):
    code, printed, note = run_watched(tmp_path / "elsewhere", "time.sleep(600)", seconds=0.05)
    assert (code, printed, note) == (-signal.SIGKILL, "", "")


def test_a_pause_is_not_watched(tmp_path):
    body = "with dog.paused(): time.sleep(1.5)"
    assert run_watched(tmp_path, body, seconds=1) == (0, "went on\n", "")


def test_nothing_is_watched_after_the_end_or_without_a_limit(tmp_path):
    for seconds in (0.01, 0.0):
        with Watchdog(seconds, note=tmp_path / "note", reason="") as dog, dog.paused():
            pass
        children = list_children()
        assert children == []
    assert not (tmp_path / "note").exists()


def list_children():
    import psutil

    return [
        child
        for child in psutil.Process(os.getpid()).children()
        if "watchdog.py" in " ".join(child.cmdline())
    ]


def test_the_watchdog_ends_with_a_killed_process(tmp_path):
    program = PROGRAM.format(body="print('up', flush=True); time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", program, "600", str(tmp_path / "note")], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"up\n"
        import psutil

        (dog,) = psutil.Process(process.pid).children()
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 60
    while dog.is_running() and dog.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the watchdog lives on"
        time.sleep(0.05)


@pytest.mark.parametrize("sign", [b"p", b"g"])
def test_a_watchdog_that_is_gone_ends_nothing(tmp_path, sign):
    with Watchdog(600, note=tmp_path / "note", reason="") as dog:
        dog._process.kill()
        dog._process.wait()
        dog._signal(sign)
        dog._signal(sign)
