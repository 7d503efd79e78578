import csv

import pytest

from dml_core.analysis.history import Result
from dml_core.analysis.observations import Observations
from tasks.report_page.pictures import MOST_DRAWN, champion_interval, draw_figures, draw_history
from tests.references.observed_studies import GRID
from tests.references.written_studies import read_study


def make_result(number, **knobs):
    values = {
        "time": f"2026-01-{1 + number % 28:02d}T02:00:00+00:00",
        "commit": f"c0ffee{number:02d}",
        "data_hash": "da7a000000001" if number < 3 else "0ther00000002",
        "digest": "d1",
        "metric": "test.recall_at_1",
        "higher_is_better": True,
        "champion": "a",
        "scores": {"a": {0: 0.5 + 0.01 * number, 1: 0.52}, "b": {0: 0.4, 1: 0.41}},
        "accepted": number == 0,
    }
    return Result(**{**values, **knobs})


def test_scores_are_drawn_with_their_commits_and_data(tmp_path):
    results = [make_result(number) for number in range(6)]
    png, svg = draw_history(results, tmp_path / "new" / "asked", title="Which $loss$?")
    assert png.read_bytes().startswith(b"\x89PNG")
    drawn = svg.read_text()
    for text in ("c0ffee00", "c0ffee05", "data da7a00000000", "data 0ther0000000", "accepted"):
        assert f"<!-- {text} -->" in drawn, text


def test_one_result_of_one_seed_and_very_many_results_are_drawn(tmp_path):
    one = make_result(0, scores={"a": {0: 0.5}})
    assert champion_interval(one) == (0.5, 0.5, 0.5)
    assert all(path.exists() for path in draw_history([one], tmp_path / "one", title=""))
    many = [make_result(number) for number in range(MOST_DRAWN + 5)]
    _, svg = draw_history(many, tmp_path / "many", title="")
    assert "c0ffee04" not in svg.read_text()


def observe_rates(*rates):
    """Scores of two arms with two seeds, which miss fewer pairs at larger false match rates."""
    return Observations(
        scores={
            f"batch_size-{size}": {
                seed: {f"fnmr_at_fmr_{rate}": size / 100 - rate + seed / 100 for rate in rates}
                | {"recall_at_1": 0.5}
                for seed in (0, 1)
            }
            for size in (30, 60)
        }
    )


def test_two_false_match_rates_are_drawn_as_a_curve_with_intervals(tmp_path):
    study = read_study(tmp_path, GRID + "fixed: {evaluation.match_rates: [0.01, 0.1]}")
    _, curve = draw_figures(study, observe_rates(0.01, 0.1), tmp_path)
    assert "missed" in curve.alt
    with open(tmp_path / "figure-2.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == "batch_size-30"]
    assert [(float(row["x"]), float(row["mean"])) for row in rows] == [
        (0.01, pytest.approx(0.295)),
        (0.1, pytest.approx(0.205)),
    ]
    assert float(rows[0]["low"]) < 0.295 < float(rows[0]["high"])
    drawn = (tmp_path / "figure-2.svg").read_text()
    assert "<!-- false match rate (FMR) -->" in drawn


def test_one_false_match_rate_has_no_curve_and_a_listed_one_is_drawn_once(tmp_path):
    rate = read_study(tmp_path, GRID + "fixed: {evaluation.match_rates: [0.01]}")
    assert len(draw_figures(rate, observe_rates(0.01), tmp_path)) == 1
    listed = (
        "fixed: {evaluation.match_rates: [0.01, 0.1]}\n"
        "figure: {kind: lines, x: '*', y: test.fnmr_at_fmr_*}\n"
    )
    study = read_study(tmp_path, GRID + listed)
    assert len(draw_figures(study, observe_rates(0.01, 0.1), tmp_path)) == 1
