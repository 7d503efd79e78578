from dml_core.trials.spec import TrialRecord, TrialSpec
from dml_core.trials.table import read_trials, write_trials
from tests.references.tiny_trials import tiny_config


def make_records(root):
    values = {"optimizer.learning_rate": 0.003, "trunk.train": "all"}
    spec = TrialSpec("a-0", "study", "a", "search", 0, values, tiny_config(root))
    good = TrialRecord(
        spec, "finished", "", 3, 2, 0.25, {"map_at_r": 0.25, "recall_at_1": 0.5}, "trials/a-0", 1.5
    )
    bad_spec = TrialSpec("b-0", "study", "b", "search", 0, {}, tiny_config(root, loss__alpha=16))
    bad = TrialRecord(bad_spec, "failed", "out of memory", 0, 0, None, {}, "trials/b-0", 0.0, 2)
    return [good, bad]


def test_records_come_back_as_they_were_written(tmp_path):
    records = make_records(tmp_path)
    write_trials(records, tmp_path / "trials.parquet")
    assert read_trials(tmp_path / "trials.parquet") == records


def test_equal_records_give_equal_bytes(tmp_path):
    for name in ("one", "two"):
        write_trials(make_records(tmp_path), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_table_without_trials_can_be_read(tmp_path):
    write_trials([], tmp_path / "trials.parquet")
    assert read_trials(tmp_path / "trials.parquet") == []
