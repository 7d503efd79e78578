"""Each check of the drills finds the problem that it is made for."""

import sqlite3

import pytest

from tests.drills.checks import (
    check_results,
    compare_ended,
    compare_files,
    compare_runs,
    compare_tables,
    count_starts,
    list_files,
    list_temporary,
    read_runs,
)
from tests.drills.project import NUM_TRIALS

ROWS = [{"trial_id": f"small-{n}", "score": n / 10} for n in range(NUM_TRIALS)]
RUNS = [
    ("", "FINISHED", []),
    ("small-0", "FINISHED", [("validation.map_at_r", 1, 0.5), ("validation.map_at_r", 2, 0.6)]),
]


def test_an_equal_table_has_no_problem():
    assert compare_tables(ROWS, ROWS) == []


def test_a_table_that_differs_is_named_with_trial_and_values():
    changed = [*ROWS[:3], {**ROWS[3], "score": 0.9}, *ROWS[4:]]
    assert compare_tables(changed, ROWS) == [
        "the table's trial small-3 differs in score=0.9 for 0.3"
    ]


def test_a_table_that_lacks_a_trial_is_found():
    assert compare_tables(ROWS[:-1], ROWS) == ["the table has 7 trials"]


def test_equal_runs_have_no_problem():
    assert compare_runs(RUNS, RUNS) == []


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ([*RUNS, RUNS[1]], "MLflow has 2 runs of small-0"),
        ([("", "RUNNING", []), RUNS[1]], "MLflow's run of the sweep is left RUNNING"),
        (
            [RUNS[0], (*RUNS[1][:2], [*RUNS[1][2], RUNS[1][2][0]])],
            "MLflow has validation.map_at_r of epoch 1 of small-0 more than once",
        ),
        (
            [RUNS[0], (*RUNS[1][:2], RUNS[1][2][:1])],
            "MLflow's runs differ: small-0 has 1 numbers for 2",
        ),
        (
            [RUNS[0], ("small-0", "FAILED", RUNS[1][2])],
            "MLflow's runs differ: ('small-0', 'FAILED') for ('small-0', 'FINISHED')",
        ),
        ([RUNS[0]], "MLflow's runs differ: 1 runs for 2"),
    ],
)
def test_a_wrong_run_in_mlflow_is_found(runs, problem):
    assert compare_runs(runs, RUNS) == [problem]


def test_a_trial_that_ran_twice_or_is_lost_is_found():
    before = {"a": (1, 5), "b": (1, 6)}
    assert compare_ended(before, {**before, "c": (2, 7)}) == []
    assert compare_ended(before, {"a": (2, 9), "b": (1, 6)}) == ["the finished trial a ran again"]
    assert compare_ended(before, {"a": (1, 5)}) == ["the finished trial b is lost"]


def test_a_trial_that_was_started_too_often_is_found():
    ended = {"a": (3, 5), "b": (4, 6)}
    assert count_starts(ended, at_most=3) == ["trial b was started 4 times"]


def test_files_that_are_left_or_missing_are_found():
    assert compare_files({"a", "b.partial"}, {"a", "c"}) == [
        "the file b.partial is left",
        "the file c is missing",
    ]


def test_a_temporary_file_is_found_and_pytorchs_cache_is_ignored(tmp_path):
    (tmp_path / "torchinductor_root").mkdir()
    assert list_temporary(tmp_path) == []
    (tmp_path / "dml-abc").mkdir()
    assert list_temporary(tmp_path) == ["the temporary file dml-abc is left"]


def test_files_with_new_names_in_every_run_are_not_compared(tmp_path):
    for name in ("results/.sweeps/tiny/logs/1.jsonl", ".dml/x", "printed-1.txt", "results/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_files(tmp_path) == {"results/a.json"}


def test_runs_are_read_from_the_database_with_duplicates(tmp_path):
    database = sqlite3.connect(tmp_path / "mlflow.db")
    database.execute("create table runs (run_uuid, status)")
    database.execute("create table tags (run_uuid, key, value)")
    database.execute("create table metrics (run_uuid, key, step, value)")
    database.execute("insert into runs values ('1', 'FINISHED'), ('2', 'RUNNING')")
    database.execute("insert into tags values ('2', 'trial_id', 'small-0'), ('2', 'x', 'y')")
    rows = [("2", "score", 0, 0.5), ("2", "score", 0, 0.5), ("2", "train.seconds", 1, 3.3)]
    database.executemany("insert into metrics values (?, ?, ?, ?)", rows)
    database.commit()
    database.close()
    assert read_runs(tmp_path) == [
        ("", "FINISHED", []),
        ("small-0", "RUNNING", [("score", 0, 0.5), ("score", 0, 0.5), ("train.seconds", 1, None)]),
    ]


def test_unreadable_results_are_a_problem_and_no_crash(tmp_path):
    problems = check_results(tmp_path / "none", tmp_path / "none")
    assert any("trials.parquet" in problem for problem in problems)
