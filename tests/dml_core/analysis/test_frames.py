import shutil
from pathlib import Path

import pytest

from dml_core.analysis import read_results, read_trial_results
from tasks.study import StudyRequest
from tests.references.made_up_results import make_results, make_score

ROOT = Path(__file__).parents[3]
STUDY = """
question: Which loss?
arms:
  anchor: {loss.name: proxy_anchor}
  triplet: {loss.name: triplet}
  lost: {loss.name: proxy_nca}
nuisance: {optimizer.learning_rate: {choice: [0.002, 0.006]}}
searcher: grid
seeds: [0, 3]
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    Path("studies").mkdir()
    Path("studies/asked.yaml").write_text(STUDY)
    make_results(StudyRequest(study="asked"), missing=["lost"])


def test_results_have_a_row_for_each_arm_and_seed(study):
    results = read_results("asked")
    assert [*zip(results["arm"], results["seed"], strict=True)] == [
        *(("anchor", 0), ("anchor", 3)),
        *(("triplet", 0), ("triplet", 3)),
    ]
    expected = [make_score("recall_at_1", place, seed) for place in (0, 1) for seed in (0, 3)]
    assert results["test.recall_at_1"].tolist() == pytest.approx(expected)
    means = results.groupby("arm")["test.map_at_r"].mean()
    assert means["triplet"] != means["anchor"]


def test_the_settings_that_differ_are_columns_and_no_others(study):
    results = read_results("asked")
    assert results["loss.name"].tolist() == ["proxy_anchor"] * 2 + ["triplet"] * 2
    # A knob that the other arm's loss does not have.
    assert results["loss.margin"].isna().tolist() == [True, True, False, False]
    assert "training.epochs" not in results
    assert "optimizer.learning_rate" not in results


def test_trials_have_a_row_each_without_json(study):
    trials = read_trial_results("asked", root="results")
    assert trials["phase"].tolist() == ["repeat"] * 4
    assert trials["status"].tolist() == ["finished"] * 4
    assert trials["trial_id"].is_unique
    assert trials["loss.name"].nunique() == 2
    assert not {"config", "values"} & set(trials)


def test_an_unknown_study_is_refused_with_the_nearest(study):
    with pytest.raises(FileNotFoundError, match=r"'askd' has no.*Did you mean 'asked'\? Run: dml"):
        read_results("askd")


def test_a_study_that_was_not_evaluated_is_named(study):
    shutil.rmtree("results/asked/evaluate")
    with pytest.raises(FileNotFoundError, match=r"scores\.json does not exist"):
        read_results("asked")
    assert len(read_trial_results("asked")) == 4
