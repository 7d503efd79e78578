import json

from dml_core.measures.results import Measured, list_winners, write_measures


def test_the_file_has_numbers_and_curves_by_arm_and_seed(tmp_path):
    measured, more = Measured(), Measured()
    measured.add_scalar("cost.step_seconds", "a", 0, 0.5)
    more.add_scalar("cost.step_seconds", "a", 1, 0.25)
    more.add_curve("gradient.positive", "b", 7, [(0.025, 1.0), (0.075, 2.0)])
    measured.update(more)
    file = write_measures(measured, tmp_path / "evaluate")
    assert file == tmp_path / "evaluate" / "measures.json"
    assert json.loads(file.read_text()) == {
        "scalars": {"cost.step_seconds": {"a": {"0": 0.5, "1": 0.25}}},
        "curves": {"gradient.positive": {"b": {"7": [[0.025, 1.0], [0.075, 2.0]]}}},
    }


def test_winners_are_listed_by_arm_and_seed(tmp_path):
    for name in ("b-seed10", "b-seed9", "a-seed1-seed2", "c-seed0"):
        (tmp_path / name).mkdir()
        if name != "c-seed0":
            (tmp_path / name / "checkpoint.pt").write_bytes(b"")
    found = [(winner.arm, winner.seed) for winner in list_winners(tmp_path)]
    assert found == [("a-seed1", 2), ("b", 9), ("b", 10)]
