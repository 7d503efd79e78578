"""The benchmarks compare what gives the same results, and their page says what their file says."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.performance_page import render_page
from benchmarks.rows import Row, make_row, read_rows, write_rows
from benchmarks.timing import rounds_within

ROOT = Path(__file__).parents[1]
SWEEPS = ("frozen_trunk", "fine_tuning", "pipeline", "scaling")
"""Some of these start clusters: see test_sweep_benchmarks.py."""


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in SWEEPS])
def test_both_sides_of_a_benchmark_give_the_same_results(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--short", "--only", name]) == 0
    assert not list(tmp_path.iterdir())


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    # 1/2, 4/4 and 9/3: the medians alone would give 4/3.
    row = make_row("group", "name", ours=[1.0, 4.0, 9.0], theirs=[2.0, 4.0, 3.0], target=1.0)
    assert (row.ours, row.theirs, row.ratio) == (4.0, 3.0, 1.0)
    assert row.spread == (0.75, 2.0)
    assert row.reached


@pytest.mark.parametrize(
    ("seconds", "numbers"), [(0.0, [0]), (25.0, [0, 1]), (30.0, [0, 1, 2]), (1e9, [0, 1, 2, 3])]
)
def test_another_round_begins_only_where_it_should_end_in_time(monkeypatch, seconds, numbers):
    now = 0.0
    monkeypatch.setattr("benchmarks.timing.WALL", lambda: now)
    found = []
    for number in rounds_within(seconds, most=4):
        found.append(number)
        now += 10.0
    assert found == numbers


def test_a_target_may_be_a_lower_bound():
    row = make_row("group", "name", ours=[4.0], theirs=[1.0], target=5.0, direction="at least")
    assert not row.reached


def test_results_that_differ_by_more_than_rounding_fail(monkeypatch, tmp_path, capsys):
    row = make_row("g", "n", ours=[1.0], target=2.0, difference=1e-3, tolerance=1e-6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.__main__._load", lambda name: lambda settings: [row])
    assert main(["--only", "losses"]) == 1
    assert "differs by 0.001" in capsys.readouterr().err


def test_the_rows_of_other_groups_stay_in_the_file(tmp_path):
    path = tmp_path / "bench.json"
    first, second = (make_row(name, "n", ours=[1.0], target=2.0) for name in ("a", "b"))
    write_rows([first], path, groups=["a"])
    write_rows([second], path, groups=["b"])
    write_rows([first], path, groups=["a"])
    assert read_rows(path) == [second, first]
    assert set(json.loads(path.read_text())["machine"]) == {"processor", "cores", "system"}


def test_a_page_gets_the_rows_between_its_marks(tmp_path):
    path = tmp_path / "bench.json"
    write_rows([_row()], path, groups=["g"])
    page = render_page("before\n<!-- table -->\nold\n<!-- end -->\nafter", path)
    assert page.startswith("before\n<!-- table -->\nMeasured on: ")
    assert page.endswith("\n<!-- end -->\nafter")
    assert "| work (on data that stood in) | theirs | 1 ms | 2 ms | 0.5 | 0.5 to 0.5 |" in page
    assert "old" not in page
    assert render_page(page, path) == page


def test_a_page_without_marks_is_refused(tmp_path):
    path = tmp_path / "bench.json"
    write_rows([_row()], path, groups=["g"])
    with pytest.raises(ValueError, match="<!-- table -->"):
        render_page("no marks", path)


def test_the_page_says_what_its_file_says():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert render_page(page, ROOT / "docs" / "performance.json") == page


def _row() -> Row:
    return make_row(
        "g",
        "work",
        ours=[1.0],
        theirs=[2.0],
        target=0.9,
        against="theirs",
        note="on data that stood in",
    )
