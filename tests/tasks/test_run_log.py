"""The log of a run: its lines, what is kept out of them, and how it is read."""

import json
import logging
import os
import stat
from types import SimpleNamespace

import pytest

from tasks.run_log import (
    EVENTS,
    KEPT_RUNS,
    NODE,
    TrialLog,
    describe_line,
    list_logs,
    logged_run,
    read_log,
)


def read_only_log(folder):
    (path,) = list_logs(folder)
    return list(read_log(path))


def test_a_line_has_time_level_event_and_study_and_nothing_empty(tmp_path):
    with logged_run(tmp_path, study="tiny") as log:
        log.write("epoch", trial="a-0", node="", epoch=3)
    (line,) = read_only_log(tmp_path)
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "info", "event": "epoch", "study": "tiny", "trial": "a-0", "epoch": 3}


def test_blocks_of_the_same_study_within_each_other_share_a_log(tmp_path):
    with logged_run(tmp_path, study="tiny") as outer, logged_run(tmp_path, study="tiny") as inner:
        assert inner is outer
        inner.write("once")
    assert [line["event"] for line in read_only_log(tmp_path)] == ["once"]


def test_a_secret_of_the_environment_never_gets_there(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    with logged_run(tmp_path, study="tiny") as log:
        log.write("message", message="key very-secret-value at http://me:hidden@host/x")
    (path,) = list_logs(tmp_path)
    text = path.read_text()
    assert "very-secret-value" not in text
    assert "hidden" not in text
    assert "host/x" in text


def test_a_log_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        with logged_run(tmp_path, study="tiny") as log:
            log.write("once")
    finally:
        os.umask(before)
    (path,) = list_logs(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    # One that an older version left open is closed by the next run.
    path.parent.chmod(0o755)
    with logged_run(tmp_path, study="tiny"):
        pass
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_error_is_the_last_line_and_goes_on(tmp_path):
    with pytest.raises(ValueError, match="no data"), logged_run(tmp_path, study="tiny"):
        raise ValueError("no data")
    last = read_only_log(tmp_path)[-1]
    assert (last["event"], last["level"], last["error"], last["message"]) == (
        "run failed", "error", "ValueError", "no data",
    )  # fmt: skip


def test_warnings_of_the_project_are_in_it_and_those_of_others_are_not(tmp_path):
    with logged_run(tmp_path, study="tiny"):
        logging.getLogger("tasks.anything").warning("only %d left", 3)
        logging.getLogger("tasks.anything").info("no news")
        logging.getLogger("somebody.else").warning("not ours")
    assert [line["message"] for line in read_only_log(tmp_path)] == ["only 3 left"]


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    with logged_run(tmp_path, study="tiny") as log:
        log.write("whole")
    (path,) = list_logs(tmp_path)
    path.write_text(path.read_text() + '{"event": "half')
    assert [line["event"] for line in read_log(path)] == ["whole"]


def test_old_logs_go(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(KEPT_RUNS + 5):
        (folder / f"20200101T0000{number:02d}Z-1.jsonl").touch()
    with logged_run(tmp_path, study="tiny"):
        pass
    names = [path.name for path in list_logs(tmp_path)]
    assert len(names) == KEPT_RUNS
    assert names[0] > "20200101T000005Z"


def make_spec():
    return SimpleNamespace(trial_id="a-seed1", arm="a", config=SimpleNamespace(seed=1))


def make_record(status="finished", reason=""):
    return SimpleNamespace(spec=make_spec(), status=status, score=0.5, reason=reason)


def test_trials_of_this_run_are_told_with_their_node_and_earlier_ones_as_kept(tmp_path):
    with logged_run(tmp_path, study="tiny") as log:
        trials = TrialLog(log)
        trials.on_epoch(make_spec(), {"epoch": 1, "train_loss": 2.0})
        trials.on_trial_end(make_record())
        trials.on_epoch(make_spec(), {"epoch": 2, "train_loss": 1.5, NODE: "one",
                                      "validation": {"recall_at_1": 0.25}})  # fmt: skip
        trials.on_epoch(make_spec(), {"epoch": 3, "train_loss": 1.0, NODE: "two"})
        trials.on_trial_end(make_record("failed", "it raised"))
    lines = read_only_log(tmp_path)
    assert [line["event"] for line in lines] == [
        "trial kept", "trial runs", "epoch", "trial moved", "epoch", "trial ended",
    ]  # fmt: skip
    assert lines[2]["numbers"] == {"loss": 1.5, "recall_at_1": 0.25}
    assert (lines[4]["node"], lines[4]["epoch"]) == ("two", 3)
    assert (lines[5]["level"], lines[5]["message"]) == ("error", "it raised")


def test_a_line_for_people_has_the_clock_and_the_numbers():
    line = json.loads(
        '{"time": "2026-01-02T03:04:05.678+00:00", "level": "error", "event": "trial ended",'
        ' "study": "tiny", "trial": "a-0", "node": "one", "status": "failed", "message": "why"}'
    )
    assert describe_line(line) == (
        "ERROR: 2026-01-02 03:04:05 trial ended, a-0, on one, failed, why"
    )


def test_events_are_repeated_for_pages_and_epochs_are_not(tmp_path, caplog, capsys):
    EVENTS.addHandler(caplog.handler)
    try:
        with logged_run(tmp_path, study="tiny") as log:
            log.write("stage ended", stage="sweep", seconds=1.5)
            log.write("epoch", trial="a-0", epoch=3)
            log.write("trial ended", level="error", trial="a-0", message="it diverged")
    finally:
        EVENTS.removeHandler(caplog.handler)
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("INFO", "ERROR")
    assert first.getMessage() == "stage ended, sweep, 1.5 s"
    assert second.getMessage() == "trial ended, a-0, it diverged"
    assert capsys.readouterr() == ("", "")
