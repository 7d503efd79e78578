"""Commands that restart themselves, and collect garbage rarely; in real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tasks.process import MAX_RESTARTS

ROOT = Path(__file__).parents[2]

COMMAND = """
import json, os, sys, threading
from tasks.process import (
    allow_restarts, can_restart, count_restarts, is_stopping, note_stop, restart
)

if "allowed" in sys.argv:
    allow_restarts()
said = {
    "pid": os.getpid(), "count": count_restarts(), "arguments": sys.argv[1:],
    "folder": os.getcwd(), "changed": os.environ.get("CHANGED", "no"),
}
os.environ["CHANGED"] = "yes"
os.chdir("/")
if "stopped" in sys.argv and count_restarts() == 1:
    note_stop()
# Not flushed here: what was printed must not be lost.
print(json.dumps({**said, "can": can_restart(), "stopping": is_stopping()}))
if can_restart():
    # As the watcher of a cluster does, beside a main thread that is blocked.
    thread = threading.Thread(target=restart)
    thread.start()
    thread.join()
"""


def run(tmp_path, *arguments):
    """Runs the command; returns what each start of it said."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DML_")}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_command_restarts_itself_three_times_and_no_more(tmp_path):
    starts = run(tmp_path, "allowed")
    assert MAX_RESTARTS == 3
    assert [start["count"] for start in starts] == [0, 1, 2, 3]
    assert [start["can"] for start in starts] == [True, True, True, False]


def test_each_start_has_the_number_folder_arguments_and_environment_of_the_first(tmp_path):
    first, *later = run(tmp_path, "allowed", "--set", "a b")
    assert first["arguments"] == ["allowed", "--set", "a b"]
    assert (first["folder"], first["changed"]) == (str(tmp_path), "no")
    assert len(later) == MAX_RESTARTS
    for start in later:
        assert {**start, "count": 0, "can": True} == first


def test_nothing_is_restarted_after_a_stop(tmp_path):
    starts = run(tmp_path, "allowed", "stopped")
    assert [(start["can"], start["stopping"]) for start in starts] == [(True, False), (False, True)]


def test_a_process_that_is_no_command_is_never_replaced(tmp_path):
    (only,) = run(tmp_path)
    assert only["can"] is False


COLLECTING = """
import atexit, gc
# Called last, since what is registered first is called last.
atexit.register(lambda: print(gc.get_freeze_count() > 1000, flush=True))
from tasks.process import collect_garbage_rarely

before = gc.get_threshold()[0]
collect_garbage_rarely()
print(gc.isenabled(), gc.get_threshold()[0] > 10 * before, gc.get_freeze_count() == 0)
"""


def test_garbage_is_collected_rarely_and_not_at_exit():
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True"] * 4
