from dataclasses import replace

import pytest

from dml_core.data.prepared_info import load_info
from tasks.tracking.evaluation import EvaluationFiles, log_evaluation, log_report
from tasks.tracking.identity import find_differing_keys, read_sweep_facts
from tasks.tracking.sync import SweepRecorder
from tests.references.recorded_sweeps import make_record, make_store

SCORES = {
    "dim_8": {0: {"recall_at_1": 0.5, "num_queries": 9.0}, 1: {"recall_at_1": 0.7}},
    "dim_16": {0: {"recall_at_1": 0.6}, 1: {"recall_at_1": 0.6}},
}


@pytest.fixture
def files(tmp_path, trained_winners):
    for name in ("answer.md", "figure.png", "grid.png"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    return EvaluationFiles(
        winners=trained_winners[1],
        answer=tmp_path / "answer.md",
        figures=[tmp_path / "figure.png"],
        retrieval_grids={"dim_8": tmp_path / "grid.png"},
    )


@pytest.fixture
def facts(tmp_path, trained_winners):
    return read_sweep_facts(trained_winners[0], project=tmp_path)


def sweep(tmp_path, config, study, facts):
    recorder = SweepRecorder(
        config, **make_store(tmp_path / "trials"), project=tmp_path, interval_seconds=0.05
    )
    recorder.start(study, facts)
    values = {"optimizer.learning_rate": 0.001}
    for spec in study.repeat_specs({"dim_8": values, "dim_16": values}):
        recorder.on_trial_end(make_record(spec))
    assert recorder.finish({})
    return recorder


def test_facts_are_those_of_the_prepared_data(trained_winners, facts):
    study, _ = trained_winners
    config = study.arm_config("dim_8")
    info = load_info(config.data.prepared_path)
    assert facts.hashes_of(config) == (info.content_hash, info.split_hash)
    assert facts.data_hash == info.content_hash
    assert facts.git_commit == ""
    assert find_differing_keys(study) == ["model.embedding_dim"]


def test_scores_go_to_the_runs_that_the_sweep_made(
    tmp_path, tracking, mlflow_config, trained_winners, files, facts
):
    study, _ = trained_winners
    recorder = sweep(tmp_path, mlflow_config, study, facts)
    for _ in range(2):
        found = log_evaluation(tracking, study, facts, scores=SCORES, files=files)
    assert found.parent_run_id == recorder.parent_run_id
    client = tracking.client()
    runs = client.search_runs([found.experiment_id])
    # A parent, four trainings and two arms, though the evaluation ran twice.
    assert len(runs) == 7
    run = client.get_run(found.seed_run_ids["dim_8"][1])
    assert run.data.tags["trial_id"] == "dim_8-seed1"
    assert (run.data.metrics["test.recall_at_1"], run.data.metrics["score"]) == (0.7, 0.15)
    history = client.get_metric_history(run.info.run_id, "test.recall_at_1")
    assert len(history) == 1
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert names == {"checkpoint.pt", "config.json"}


def test_an_arm_has_the_mean_and_can_be_compared(tracking, trained_winners, files, facts):
    study, _ = trained_winners
    found = log_evaluation(tracking, study, facts, scores=SCORES, files=files)
    client = tracking.client()
    arm = client.get_run(found.arm_run_ids["dim_8"])
    bounds = {name: arm.data.metrics.pop(f"test.recall_at_1.{name}") for name in ("low", "high")}
    # 0.6 plus and minus 12.706 (the t quantile for one degree of freedom) times 0.1414 / sqrt(2).
    # The t-interval is 0.6 +- 1.2706; that of a share stays within 0 and 1.
    assert bounds == {"low": 0.0, "high": 1.0}
    # The means of both arms are equal, so either may be the better one.
    assert arm.data.metrics.pop("test.recall_at_1.p_better") == pytest.approx(0.5)
    assert arm.data.metrics == {"test.recall_at_1": 0.6}
    # What the arms vary and what was tuned, and nothing else.
    assert arm.data.params["model.embedding_dim"] == "8"
    tuned = {key for arm in study.arms for key in arm.space}
    assert set(arm.data.params) == {"model.embedding_dim"} | tuned
    assert arm.data.tags["stage"] == "arm"
    assert arm.data.tags["seed"] == "0,1"
    for run_id in found.arm_run_ids.values():
        assert run_id in found.comparison.url
    folders = {item.path for item in client.list_artifacts(found.parent_run_id)}
    assert folders == {"answer", "figures", "retrieval", "study"}
    shown = client.list_artifacts(arm.info.run_id, "retrieval")
    assert [item.path for item in shown] == ["retrieval/grid.png"]


def test_other_data_have_their_own_record(tracking, trained_winners, files, facts):
    study, _ = trained_winners
    one = log_evaluation(tracking, study, facts, scores=SCORES, files=files)
    changed = replace(facts, datasets={"glyphs": ("other", "split")})
    other = log_evaluation(tracking, study, changed, scores=SCORES, files=files)
    assert one.parent_run_id != other.parent_run_id
    assert one.experiment_id == other.experiment_id


def test_a_report_joins_the_same_parent_run(tmp_path, tracking, trained_winners, files, facts):
    study, _ = trained_winners
    bare = replace(files, answer=None, figures=[])
    found = log_evaluation(tracking, study, facts, scores=SCORES, files=bare)
    log_report(tracking, study, facts, answer=files.answer, figures=files.figures)
    client = tracking.client()
    listed = client.list_artifacts(found.parent_run_id, "figures")
    assert [item.path for item in listed] == ["figures/figure.png"]
    assert len(client.search_runs([found.experiment_id])) == 7
