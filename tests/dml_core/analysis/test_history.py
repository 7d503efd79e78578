"""Tests of the history of results."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.analysis.history import (
    HistoryError,
    Result,
    adjust_holm,
    find_accepted,
    history_file,
    measure_change,
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


def change(accepted, found, *, higher_is_better=True, champions=("a", "a")):
    old, new = champions
    return measure_change(
        accepted, found, accepted_champion=old, champion=new, higher_is_better=higher_is_better
    )


BEFORE = {"a": {0: 0.50, 1: 0.52, 2: 0.54}}


def shifted(*shifts):
    return {"a": {seed: BEFORE["a"][seed] + shift for seed, shift in enumerate(shifts)}}


def test_a_drop_of_every_seed_by_about_as_much_is_a_drop():
    # Differences -0.02, -0.03, -0.04: mean -0.03, deviation 0.01, error 0.01 / sqrt(3) = 0.005774;
    # t(0.975, 2) = 4.302653, reach 0.024841: from -0.054841 to -0.005159, all below zero.
    found = change(BEFORE, shifted(-0.02, -0.03, -0.04))
    assert found.champion.mean == pytest.approx(-0.03)
    assert found.champion.interval == pytest.approx((-0.054841, -0.005159), abs=1e-6)
    assert found.verdict == "drop"


def test_a_drop_that_seeds_disagree_about_is_none():
    # Differences 0, -0.03, -0.06: deviation 0.03, reach 0.074524: from -0.1045 to 0.0445.
    found = change(BEFORE, shifted(0.0, -0.03, -0.06))
    assert found.champion.interval == pytest.approx((-0.104524, 0.044524), abs=1e-6)
    assert found.verdict == "no change"


def test_a_gain_is_proposed():
    assert change(BEFORE, shifted(0.02, 0.03, 0.04)).verdict == "gain"


def test_for_a_distance_less_is_better():
    assert change(BEFORE, shifted(0.02, 0.03, 0.04), higher_is_better=False).verdict == "drop"
    assert change(BEFORE, shifted(-0.02, -0.03, -0.04), higher_is_better=False).verdict == "gain"


def test_equal_numbers_are_no_change_and_an_equal_shift_of_all_is_one():
    assert change(BEFORE, BEFORE).verdict == "no change"
    assert change(BEFORE, shifted(-0.01, -0.01, -0.01)).verdict == "drop"


@pytest.mark.parametrize("found", [{"a": {0: 0.1}}, {"a": {7: 0.1, 8: 0.1}}, {"b": {0: 0.1}}, {}])
def test_fewer_than_two_common_seeds_give_no_change(found):
    assert change(BEFORE, found).verdict == "no change"


def test_the_champion_may_be_another_arm_than_before():
    accepted = {**BEFORE, "b": {0: 0.3, 1: 0.3, 2: 0.3}}
    found = {**BEFORE, "b": {0: 0.60, 1: 0.63, 2: 0.66}}
    both = change(accepted, found, champions=("a", "b"))
    # 0.10, 0.11, 0.12 over the old champion, paired by seed.
    assert both.champion.mean == pytest.approx(0.11)
    assert both.champion.reference == "a"
    assert both.verdict == "gain"


def test_an_arm_that_is_not_the_champion_drops_only_among_all_arms():
    accepted = {arm: {seed: 0.5 for seed in range(3)} for arm in "abc"}
    found = {**accepted, "b": {0: 0.48, 1: 0.47, 2: 0.46}}
    # p of -0.02, -0.03, -0.04 alone: t = -5.196, 2 degrees of freedom, p = 0.0351; equal arms have
    # p = 1; Holm multiplies the smallest of three by three: 0.105, so that it does not stand.
    found_change = change(accepted, found)
    assert found_change.arms["b"].p_value == pytest.approx(0.0351, abs=1e-4)
    assert found_change.arms["b"].adjusted_p_value == pytest.approx(0.1053, abs=1e-3)
    assert found_change.verdict == "no change"
    # -0.029, -0.030, -0.031: t = -51.96, p = 0.00037, times three 0.0011.
    clear = change(accepted, {**accepted, "b": {0: 0.471, 1: 0.470, 2: 0.469}})
    assert clear.worse_arms == ["b"]
    assert clear.verdict == "drop"


def test_a_gain_of_the_champion_does_not_hide_a_drop_of_another_arm():
    accepted = {arm: {seed: 0.5 for seed in range(3)} for arm in "ab"}
    found = {"a": {0: 0.6, 1: 0.61, 2: 0.62}, "b": {0: 0.1, 1: 0.101, 2: 0.102}}
    assert change(accepted, found).verdict == "drop"


def test_holms_worked_example():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.06 (never falling).
    assert adjust_holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert adjust_holm([0.5, 0.9]) == [1.0, 1.0]
    assert adjust_holm([0.03]) == [0.03]
    assert adjust_holm([]) == []


def reject_by_definition(p_values, alpha):
    """Rejects the smallest while it is at most alpha over the number that is left."""
    rejected, left = set(), dict(enumerate(p_values))
    while left:
        smallest = min(left, key=lambda place: left[place])
        if left[smallest] > alpha / len(left):
            break
        rejected.add(smallest)
        del left[smallest]
    return rejected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8), st.sampled_from([0.01, 0.05, 0.2]))
def test_adjusted_p_values_reject_what_holms_procedure_rejects(p_values, alpha):
    adjusted = adjust_holm(p_values)
    # Values at the threshold to the last bit may fall on either side.
    if any(abs(value - alpha) < 1e-9 for value in adjusted):
        return
    found = {place for place, value in enumerate(adjusted) if value <= alpha}
    assert found == reject_by_definition(p_values, alpha)
