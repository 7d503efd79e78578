import json
from typing import get_args

from dml_core.measures import of_study
from dml_core.measures.of_study import MEASURES, measure_study
from dml_core.measures.results import Measured, list_winners
from dml_core.studies.definition import Measure


def test_every_measure_that_a_study_may_list_exists():
    assert set(MEASURES) == set(get_args(Measure))


def test_the_file_has_numbers_and_curves_by_arm_and_seed(tmp_path, monkeypatch):
    def cost(winners):
        measured = Measured()
        measured.add_scalar("cost.step_seconds", "a", 0, 0.5)
        measured.add_scalar("cost.step_seconds", "a", 1, 0.25)
        return measured

    def curves(winners):
        measured = Measured()
        measured.add_curve("gradient.positive", "b", 7, [(0.025, 1.0), (0.075, 2.0)])
        return measured

    monkeypatch.setitem(of_study.MEASURES, "step_cost", cost)
    monkeypatch.setitem(of_study.MEASURES, "gradients", curves)
    file = measure_study(("gradients", "step_cost"), tmp_path, tmp_path / "evaluate")
    assert file == tmp_path / "evaluate" / "measures.json"
    assert json.loads(file.read_text()) == {
        "scalars": {"cost.step_seconds": {"a": {"0": 0.5, "1": 0.25}}},
        "curves": {"gradient.positive": {"b": {"7": [[0.025, 1.0], [0.075, 2.0]]}}},
    }


def test_a_study_without_measures_leaves_no_file(tmp_path):
    (tmp_path / "measures.json").write_text("{}")
    assert measure_study((), tmp_path, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_winners_are_listed_by_arm_and_seed(tmp_path):
    for name in ("b-seed10", "b-seed9", "a-seed1-seed2", "c-seed0"):
        (tmp_path / name).mkdir()
        if name != "c-seed0":
            (tmp_path / name / "checkpoint.pt").write_bytes(b"")
    found = [(winner.arm, winner.seed) for winner in list_winners(tmp_path)]
    assert found == [("a-seed1", 2), ("b", 9), ("b", 10)]
