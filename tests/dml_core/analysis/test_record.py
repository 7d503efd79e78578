import pytest

from dml_core.analysis.history import (
    HistoryError,
    Result,
    find_accepted,
    history_file,
    note_result,
    read_history,
)


def make_result(score=0.5, **knobs):
    values = {
        "time": "2026-01-01T02:00:00+00:00",
        "commit": "abc",
        "data_hash": "da7a",
        "digest": "d1",
        "metric": "test.recall_at_1",
        "higher_is_better": True,
        "champion": "a",
        "scores": {"a": {0: score, 1: score + 0.1}},
    }
    return Result(**{**values, **knobs})


@pytest.fixture
def file(tmp_path):
    return history_file(tmp_path / "results", "main@smoke")


def test_results_come_back_in_order_with_their_seeds(file):
    assert read_history(file) == []
    noted = [make_result(0.5, accepted=True), make_result(0.6), make_result(0.5)]
    assert [note_result(file, result) for result in noted] == [True, True, True]
    assert read_history(file) == noted
    assert file.name == "main@smoke.jsonl"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_same_numbers_again_are_noted_once_and_may_be_accepted_later(file):
    note_result(file, make_result(verdict="gain"))
    assert not note_result(file, make_result(time="2026-01-02T02:00:00+00:00", commit="def"))
    assert not note_result(file, make_result(accepted=True))
    (kept,) = read_history(file)
    assert kept == make_result(verdict="gain", accepted=True)


def test_the_newest_accepted_result_of_the_same_data_and_metric_counts():
    results = [
        make_result(0.1, accepted=True),
        make_result(0.2, accepted=True),
        make_result(0.3),
        make_result(0.4, accepted=True, data_hash="other"),
        make_result(0.5, accepted=True, metric="test.map_at_r"),
    ]
    assert find_accepted(results, make_result(0.9)) == results[1]
    assert find_accepted(results, make_result(0.9, data_hash="other")) == results[3]
    assert find_accepted(results, make_result(0.9, data_hash="new")) is None


@pytest.mark.parametrize("line", ["", "torn {", '{"time": 3}', "[]"])
def test_a_damaged_line_is_named(file, line):
    note_result(file, make_result())
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(HistoryError, match=r"main@smoke\.jsonl, line 2 is not a valid result"):
        read_history(file)
