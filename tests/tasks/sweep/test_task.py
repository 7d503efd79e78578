import pytest

from dml_core.trials.ledger import SweepIsRunning, hold_folder
from tasks.study import StudyRequest
from tasks.sweep.task import sweep_study
from tests.references.tiny_studies import TWO_ARMS


def test_a_second_sweep_of_a_study_leaves_the_record_of_the_first_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "tiny.yaml").write_text(TWO_ARMS)
    working_folder = tmp_path / "results" / ".sweeps" / "tiny"
    with hold_folder(working_folder), pytest.raises(SweepIsRunning, match="is in use by process"):
        sweep_study.fn(StudyRequest(study="tiny"), "none")
    assert not (tmp_path / "mlflow.db").exists()
    assert sorted(path.name for path in working_folder.iterdir()) == ["lock.json", "logs"]
