"""`dml compare` over runs that a plain script logged, and over studies with made-up results."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dml_core.analysis.summary import summarize
from dml_core.studies.metrics import Unit
from flows.commands.compare import compare
from tasks.study import StudyRequest
from tests.references.made_up_results import make_results

ROOT = Path(__file__).parents[3]
# Code that knows nothing of this project: MLflow alone.
SCRIPT = """
import sys, time, mlflow
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("augmentations")

def log(name, seed, accuracy):
    with mlflow.start_run():
        if name is not None:
            mlflow.set_tag("augmentation", name)
        if seed is not None:
            mlflow.log_param("seed", seed)
        if accuracy is not None:
            mlflow.log_metric("accuracy", accuracy)
            mlflow.log_metric("error", 1 - accuracy)

log("crop", 0, 0.1)
time.sleep(0.01)
for seed in range(4):
    log("<b>none</b>", seed, 0.80 + 0.002 * seed)
    log("crop", seed, 0.85 - 0.001 * seed)
    log("mixup", seed, 0.848 + 0.001 * seed)
log(None, 0, 0.9)
log("crop", None, 0.9)
log("crop", 4, None)
try:
    with mlflow.start_run():
        mlflow.log_metric("accuracy", 0.99)
        raise RuntimeError("no memory")
except RuntimeError:
    pass
"""
SCORES = {
    "<b>none</b>": {seed: 0.80 + 0.002 * seed for seed in range(4)},
    "crop": {seed: 0.85 - 0.001 * seed for seed in range(4)},
    "mixup": {seed: 0.848 + 0.001 * seed for seed in range(4)},
}
STUDY = """
question: Which of two losses?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0, 1, 2]
profiles: {smoke: {fixed: {training.epochs: 1}}}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A database that a script outside of this project has filled."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    uri = f"sqlite:///{folder}/runs.db"
    silent = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
    subprocess.run(
        [sys.executable, "-I", str(folder / "train.py"), uri],
        cwd=folder,
        env={**os.environ, **silent},
        check=True,
        capture_output=True,
    )
    (folder / "runs.db").chmod(0o644)
    return uri


def call(store, **changes):
    options = {
        "studies": None,
        "experiment": "augmentations",
        "group_by": ["augmentation"],
        "seed_by": "seed",
        "metric": "accuracy",
        "where": "",
        "tracking_uri": store,
        "lower_is_better": False,
        "smallest_effect": None,
    }
    compare(**{**options, **changes})


def test_runs_of_other_code_get_the_statistics_of_a_study(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call(store, smallest_effect=0.01)
    lines = capsys.readouterr().out.splitlines()
    summary = summarize(SCORES, metric="accuracy", unit=Unit(1, "", "", 4), smallest_effect=0.01)
    assert lines[0] == summary.recommendation.text
    assert lines[0].startswith("Use any of mixup and crop: they differ by less than 0.01.")
    none = "<b>none</b>: accuracy 0.8030 (0.7989 to 0.8071), almost certainly worse than mixup"
    assert lines[1].startswith(none)
    assert [line.split(":")[0] for line in lines[1:4]] == list(SCORES)
    assert lines[4] == (
        "12 of 17 runs count; left out: 1 not finished, 1 replaced by a newer run of the same "
        "seed, 1 without the group, 1 without the metric, 1 without the seed."
    )
    assert lines[5] == "page: reports/compare/augmentations-by-augmentation.html"
    page = (tmp_path / "reports/compare/augmentations-by-augmentation.html").read_text()
    assert "MLflow experiment" in page
    assert "<td" in page
    assert page.count("data:image/svg+xml") > 0
    assert "&lt;b&gt;none&lt;/b&gt;" in page
    assert "<b>none" not in page
    assert "12 of 17 runs count" in page
    # A database of other people keeps its permissions, and nothing is added beside it.
    database = Path(store.removeprefix("sqlite:///"))
    assert database.stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / "mlruns").exists()
    assert not (database.parent / "mlartifacts").exists()


def test_lower_is_better_turns_the_verdicts_around(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call(store, metric="error", lower_is_better=True, smallest_effect=0.01)
    first, none, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("Use any of mixup and crop")
    assert "worse than mixup (+0.0465" in none


def test_a_filter_leaves_runs_out_before_they_are_counted(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call(store, where="params.seed != '3' and attributes.status = 'FINISHED'")
    said = capsys.readouterr().out
    assert re.search(r"^9 of 12 runs count", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiment": "augmentation"}, "no experiment 'augmentation'. Did you mean 'augment"),
        ({"group_by": ["augmentatoin"]}, "--group-by 'augmentatoin'.*Did you mean 'augmentation'"),
        ({"seed_by": "sead"}, "--seed-by 'sead'.*Did you mean 'seed'"),
        ({"metric": "acuracy"}, "--metric 'acuracy'.*Did you mean 'accuracy'"),
        ({"metric": ""}, "needs --metric, as in: dml compare"),
        ({"where": "nonsense"}, "MLflow at .*runs.db refuses: Invalid"),
        ({"tracking_uri": "sqlite:////nowhere/mlflow.db"}, "no MLflow database /nowhere/mlflow.db"),
        ({"studies": ["main"], "experiment": ""}, "needs two or more studies"),
    ],
)
def test_mistakes_name_the_nearest_and_what_to_do(store, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        call(store, **changes)
    assert not (tmp_path / "reports").exists()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with the results of a study and of its smaller profile, both made up."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    Path("studies").mkdir()
    Path("studies/asked.yaml").write_text(STUDY)
    for profile in (None, "smoke"):
        make_results(StudyRequest(study="asked", profile=profile))
    return tmp_path


def test_two_profiles_are_compared_arm_by_arm(project, capsys):
    call(None, studies=["asked", "asked@smoke"], experiment="", metric="", tracking_uri="")
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(": recall_at_1")[0] for line in lines[1:5]]
    arms = ("anchor", "triplet")
    assert names == [f"{study}: {arm}" for study in ("asked", "asked@smoke") for arm in arms]
    # The made-up scores of both profiles are the same, and so have no difference.
    assert "cannot tell from asked: anchor" in lines[3] or "no difference" in lines[3]
    assert "The same score for every seed, as of shared trainings: asked: anchor" in lines[5]
    assert lines[6] == "page: reports/compare/asked-asked@smoke.html"


def test_a_study_without_results_says_how_to_get_them(project):
    shutil.rmtree(project / "results" / "asked@smoke" / "evaluate")
    with pytest.raises(ValueError, match="Run: dml run asked --profile smoke"):
        call(None, studies=["asked", "asked@smoke"], experiment="", metric="", tracking_uri="")
