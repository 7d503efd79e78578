"""`make drill`: what it prints and writes, and its exit code."""

import json
import os
import signal
import tempfile
import threading
from contextlib import nullcontext

import pytest

import tests.drills.__main__ as command
from tests.drills.plan import Drill, Moment
from tests.drills.report import read_lines, to_line, to_text
from tests.drills.runner import Outcome, drill_folder

DRILL = Drill(seed=5, number=12, fault="ctrl-c", moment=Moment(2, 7))
PASSED = Outcome(DRILL, 31.4, "resumed by the same command")
FAILED = Outcome(DRILL, 20.0, problems=["the table has 7 trials"], folder="/somewhere/drill-12")
SKIPPED = Outcome(DRILL, 0.0, skipped="mount: permission denied")


def test_a_drill_is_one_line():
    assert to_text(PASSED) == (
        " 12 ctrl-c (2 ended, next at epoch 7): resumed by the same command, 31 s, ok"
    )


def test_a_failed_drill_has_its_problems_its_folder_and_the_command_that_repeats_it():
    text = to_text(FAILED)
    for part in ("FAILED", "7 trials", "/somewhere/drill-12", "make drill SEED=5 ONLY=12"):
        assert part in text


def test_a_skipped_drill_has_its_reason():
    assert "skipped, mount: permission denied" in to_text(SKIPPED)


def test_a_json_line_has_seed_number_moment_and_result():
    line = json.loads(json.dumps(to_line(FAILED)))
    assert (line["seed"], line["number"], line["result"]) == (5, 12, "failed")
    assert line["moment"] == {"ended": 2, "epoch": 7}


@pytest.mark.parametrize(("outcome", "code"), [(PASSED, 0), (SKIPPED, 0), (FAILED, 1)])
def test_the_exit_code_is_1_if_a_drill_failed(monkeypatch, tmp_path, capsys, outcome, code):
    monkeypatch.setattr(command, "DrillGround", StubGround)
    monkeypatch.setattr(StubGround, "outcome", outcome)
    output = tmp_path / "drills.jsonl"
    arguments = ["--seed", "5", "--only", "12", "--output", str(output)]
    assert command.main(arguments) == code
    assert [line["result"] for line in read_lines(output)] == [outcome.result]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{int(outcome is PASSED)} of 1 drills passed")


@pytest.mark.parametrize(("option", "value"), [("--count", "0"), ("--seed", "-1"), ("--only", "0")])
def test_a_number_below_its_minimum_is_refused(capsys, option, value):
    with pytest.raises(SystemExit):
        command.main([option, value])
    assert f"Got {value}" in capsys.readouterr().err


class StubGround:
    """Stands for the sweeps, which test_faults.py runs."""

    outcome = PASSED

    def __init__(self, folder):
        self.is_over = threading.Event()

    def open(self):
        return nullcontext()

    def run_undisturbed(self):
        return 1.0

    def run(self, drill):
        return self.outcome


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_folder_stays_if_a_failed_drill_left_something(temporary):
    with drill_folder() as folder:
        (folder / "project").mkdir()
    assert list(temporary.iterdir()) == []
    with drill_folder() as folder:
        (folder / "project").mkdir()
        (folder / "drill-3").mkdir()
    assert [path.name for path in folder.iterdir()] == ["drill-3"]


def test_a_terminated_command_leaves_nothing(temporary, monkeypatch):
    monkeypatch.setattr(command, "DrillGround", StubGround)
    monkeypatch.setattr(StubGround, "run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        command.main(["--count", "1"])
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before
