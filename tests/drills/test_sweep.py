"""The processes of a drill, with small programs in place of the sweep."""

import json
import subprocess
import sys
import threading
import time

import pytest

from tests.drills.plan import DrillFailed
from tests.drills.sweep import MARK, DrilledSweep, Family

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sweep(tmp_path):
    sweep = DrilledSweep(tmp_path, is_over=threading.Event())
    (tmp_path / "printed-0.txt").write_text("one\n\ntwo\n")
    yield sweep
    sweep.close()
    sweep.temporary.rmdir()


def test_waits_end_when_the_drills_are_stopped(sweep):
    sweep.process = subprocess.Popen(SLEEP)
    sweep._is_over.set()
    with pytest.raises(DrillFailed, match="stopped"):
        sweep.wait_for_end()
    with pytest.raises(DrillFailed, match="stopped"):
        sweep.wait_for(lambda: False, "anything")


def test_a_command_that_ends_too_early_is_reported_with_its_last_lines(sweep):
    sweep.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(DrillFailed, match=r"ended before the middle: one \| two"):
        sweep.wait_for(lambda: False, "the middle")
    with pytest.raises(DrillFailed, match="ended with 3"):
        sweep.finish()


def test_ended_and_running_trials_are_read_from_their_journals(sweep):
    sweep.working_folder.mkdir(parents=True)
    with open(sweep.working_folder / "trials.jsonl", "w") as file:
        file.write('{"event": "requ\n')
        for name in ("done", "begun", "waiting"):
            trial = {"trial_id": name}
            file.write(
                json.dumps({"event": "requested", "key": f"k-{name}", "trial": trial}) + "\n"
            )
        file.write('{"event": "ju')
    for name in ("done", "begun"):
        journal = sweep.trials_folder / f"k-{name}"
        journal.mkdir(parents=True)
        (journal / "epochs.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    (sweep.trials_folder / "k-done" / "result.json").write_text('{"attempt": 2}')
    assert sweep.running() == {"begun": 2}
    ((name, (attempts, _)),) = sweep.ended().items()
    assert (name, attempts) == ("done", 2)


def wait_until_seen(family):
    # The kernel sets the environment of a new program shortly after Popen has returned.
    deadline = time.monotonic() + 30
    while not (left := family.left(seconds=0)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


@pytest.mark.parametrize("found_by", ["mark", "folder"])
def test_a_left_process_is_found(tmp_path, found_by):
    family = Family(tmp_path)
    assert family.left(seconds=0) == []
    place = {"env": {MARK: str(tmp_path)}} if found_by == "mark" else {"cwd": tmp_path}
    process = subprocess.Popen(SLEEP, **place)
    try:
        (left,) = wait_until_seen(family)
        assert left.startswith(f"{process.pid} ")
        family.kill()
        process.wait()
        assert family.left(seconds=0) == []
    finally:
        process.kill()
        process.wait()
