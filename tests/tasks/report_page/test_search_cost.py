"""The figure of what a search costs."""

import csv

from dml_core.analysis.observations import Observations
from dml_core.studies.metrics import SEARCH_INDEXES
from tasks.report_page.search_cost import draw_search_cost
from tests.references.observed_studies import GRID
from tests.references.written_studies import read_study


def observe(*arms):
    scalars = {}
    for place, kind in enumerate(SEARCH_INDEXES):
        values = {"recall_at_1": 0.9 - place / 50, "bytes": 2.0**place}
        for name, value in values.items():
            scalars[f"search.{kind}_{name}"] = {a: {0: value, 1: value + 0.01} for a in arms}
        speeds = {arm: {number: 1000.0 + number for number in range(3)} for arm in arms}
        scalars[f"search.{kind}_queries_per_second"] = speeds
    return Observations(measured_scalars=scalars)


def test_each_arm_and_index_has_a_point_in_both_panels(tmp_path):
    study = read_study(tmp_path, GRID + "measures: [search_cost]\n")
    (picture,) = draw_search_cost(study, observe("batch_size-30", "batch_size-60"), tmp_path)
    assert picture.name == "search_cost"
    assert "queries" in picture.caption
    with open(tmp_path / "search_cost.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * len(SEARCH_INDEXES)
    first = rows[0]
    assert first["series"] == "batch_size-30, float32"
    assert float(first["x"]) == 1.005
    assert float(first["low"]) < 0.905 < float(first["high"])
    drawn = (tmp_path / "search_cost.svg").read_text()
    for text in (*SEARCH_INDEXES, "batch_size-60", "bytes of an image", "queries a second"):
        assert f"<!-- {text} -->" in drawn, text


def test_a_study_without_the_measure_has_no_such_figure(tmp_path):
    study = read_study(tmp_path, GRID)
    assert draw_search_cost(study, Observations(), tmp_path) == []
    assert not (tmp_path / "search_cost.csv").exists()
