import json
import threading
from contextlib import nullcontext

import pytest

from flows.commands import drill as command
from flows.drills.plan import Drill, Moment
from flows.drills.runner import Outcome, drill_folder

DRILL = Drill(seed=5, number=12, fault="ctrl-c", moment=Moment(2, 7))
PASSED = Outcome(DRILL, 31.4, "resumed by the same command")
FAILED = Outcome(DRILL, 20.0, problems=["the table has 7 trials"], folder="/somewhere/drill-12")
SKIPPED = Outcome(DRILL, 0.0, skipped="mount: permission denied")


def test_a_drill_is_one_line():
    assert command.to_line(PASSED) == (
        " 12 ctrl-c (2 ended, next at epoch 7): resumed by the same command, 31 s, ok"
    )


def test_a_failed_drill_says_what_failed_where_it_is_and_how_to_repeat_it():
    line = command.to_line(FAILED)
    for text in ("FAILED", "7 trials", "/somewhere/drill-12", "dml drill --seed 5 --only 12"):
        assert text in line


def test_a_skipped_drill_is_told_and_not_counted_as_passed():
    assert "skipped, mount: permission denied" in command.to_line(SKIPPED)
    counted = command.count_results([PASSED, FAILED, SKIPPED])
    assert counted == [{"fault": "ctrl-c", "drills": 3, "passed": 1, "failed": 1, "skipped": 1}]


def test_a_drill_as_json_has_all_that_the_line_has():
    plain = json.loads(json.dumps(command.to_plain(FAILED)))
    assert plain["result"] == "failed"
    assert plain["moment"] == {"ended": 2, "epoch": 7}
    assert plain["command"] == "dml drill --seed 5 --only 12"


@pytest.mark.parametrize(("outcome", "code"), [(PASSED, 0), (SKIPPED, 0), (FAILED, 1)])
def test_the_command_ends_with_1_where_a_drill_failed(monkeypatch, tmp_path, capsys, outcome, code):
    monkeypatch.setattr(command, "DrillGround", StubGround)
    monkeypatch.setattr(StubGround, "outcome", outcome)
    ended = 0
    try:
        command.run_drill(
            count=1, seed=0, faults=[], only=[12], keep=tmp_path, parallel=1, as_json=True
        )
    except SystemExit as end:
        ended = end.code
    assert ended == code
    first, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["result"] == outcome.result
    assert last["passed"] == (outcome is PASSED)


class StubGround:
    """Stands for the sweeps, which tests/flows/test_drills.py runs."""

    outcome = PASSED

    def __init__(self, folder):
        self.is_over = threading.Event()

    def open(self):
        return nullcontext()

    def run_undisturbed(self):
        return 1.0

    def run(self, drill):
        return self.outcome


def test_the_folder_stays_where_a_failed_drill_left_something(tmp_path):
    with drill_folder(tmp_path / "kept") as folder:
        (folder / "project").mkdir()
    assert not folder.exists()
    with drill_folder(tmp_path / "kept") as folder:
        (folder / "project").mkdir()
        (folder / "drill-3").mkdir()
    assert [path.name for path in folder.iterdir()] == ["drill-3"]
