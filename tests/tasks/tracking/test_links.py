import json
from urllib.parse import parse_qs

from tasks.tracking.address import Tracking
from tasks.tracking.links import compare_url, link_comparison, link_run


def test_the_comparison_names_its_runs_and_experiments():
    tracking = Tracking("http://127.0.0.1:5000/", artifact_root=None)
    url = compare_url(tracking, experiment_ids=["1"], run_ids=["aa", "bb"])
    page, query = url.split("?")
    assert page == "http://127.0.0.1:5000/#/compare-runs"
    values = parse_qs(query)
    assert json.loads(values["runs"][0]) == ["aa", "bb"]
    assert json.loads(values["experiments"][0]) == ["1"]


def test_a_file_has_a_path_and_says_how_to_see_it():
    tracking = Tracking("sqlite:////tmp/mlflow.db", artifact_root=None)
    link = link_comparison(tracking, experiment_ids=["1"], run_ids=["aa"])
    assert link.url.startswith("/#/compare-runs?runs=%5B%22aa%22%5D")
    assert "dml up" in link.describe()


def test_no_link_shows_a_password():
    tracking = Tracking("https://ann:secret@example.org", artifact_root=None)
    assert link_run(tracking, experiment_id="1", run_id="aa").url == (
        "https://example.org/#/experiments/1/runs/aa"
    )
