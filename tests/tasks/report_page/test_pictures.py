from dml_core.analysis.history import Result
from tasks.report_page.pictures import MOST_DRAWN, champion_interval, draw_history


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
