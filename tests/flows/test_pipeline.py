"""The whole pipeline as a user runs it: real Ray, Prefect, MLflow and DVC in its own project."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from tasks.run_log import list_logs, read_log
from tasks.versioning.repo import stale_stages
from tests.references.tiny_projects import TWO_ARMS, make_project

BIN = Path(sys.executable).parent
STUDY = """
question: Which of two losses?
arms:
  anchor: {loss.name: proxy_anchor}
  triplet: {scientific: {loss.name: triplet}, nuisance: {loss.margin: {uniform: [0.05, 0.3]}}}
nuisance: {optimizer.learning_rate: {log_uniform: [0.001, 0.01]}}
trials_per_arm: 2
edge_rounds: 0
seeds: [0, 1]
figure: {kind: bar, x: arm, y: test.recall_at_1}
"""


def make_environment():
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}


def run(folder, *command, timeout=400):
    return subprocess.run(
        command, cwd=folder, env=make_environment(), capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with one tiny study that was answered by `dml run`."""
    folder = make_project(tmp_path_factory.mktemp("project"), {"tiny": STUDY})
    done = run(folder, "dml", "run", "tiny")
    assert done.returncode == 0, done.stderr[-3000:]
    folder.joinpath("answer.txt").write_text(done.stdout)
    return folder


@pytest.mark.integration
def test_run_answers_the_question(project):
    printed = (project / "answer.txt").read_text()
    assert "Which of two losses?" in printed
    assert "anchor: recall_at_1" in printed
    assert "triplet: recall_at_1" in printed
    assert "\nopen:    dml open tiny\n" in printed
    assert max(map(len, printed.splitlines())) < 200
    answer = json.loads((project / "reports" / "tiny" / "answer.json").read_text())
    assert answer["compare_url"].startswith("/#/compare-runs?runs=")
    assert " " not in answer["compare_url"]
    page = (project / "reports" / "tiny" / "index.html").read_text()
    assert "Which of two losses?" in page
    assert "data:image/png;base64," in page


@pytest.mark.integration
def test_every_arm_had_the_same_budget(project):
    trials = pd.read_parquet(project / "results" / "tiny" / "sweep" / "trials.parquet")
    counts = trials[trials["phase"] == "search"].groupby("arm").size()
    assert counts.to_dict() == {"anchor": 2, "triplet": 2}
    scores = json.loads((project / "results/tiny/evaluate/scores.json").read_text())["scores"]
    assert {arm: sorted(seeds) for arm, seeds in scores.items()} == {
        "anchor": ["0", "1"],
        "triplet": ["0", "1"],
    }


@pytest.mark.integration
def test_the_log_has_stages_trials_nodes_and_epochs(project):
    printed = run(project, "dml", "logs", "tiny", "--json").stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    events = [line["event"] for line in lines]
    assert (events[0], events[-1]) == ("run started", "run ended")
    ended = [line["stage"] for line in lines if line["event"] == "stage ended"]
    assert ended == ["prepare", "sweep", "evaluate", "report"]
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert {line["epoch"] for line in epochs} == {1}
    assert all(line["node"] and line["study"] == "tiny" for line in epochs)
    trial = epochs[0]["trial"]
    shown = run(project, "dml", "logs", "tiny", trial).stdout
    assert f"{trial}, epoch 1" in shown
    unknown = run(project, "dml", "logs", "tiny", "unknown")
    assert unknown.returncode == 2
    assert trial in unknown.stderr


@pytest.mark.integration
def test_every_trial_is_in_mlflow_and_none_is_left_running(project):
    with sqlite3.connect(project / "mlflow.db") as database:
        statuses = database.execute("select status, count(*) from runs group by status").fetchall()
        models = database.execute("select name from registered_models").fetchall()
    assert [status for status, _ in statuses] == ["FINISHED"]
    assert models == [("dml-tiny",)]


@pytest.mark.integration
def test_afterwards_neither_door_has_anything_to_do(project):
    repro = run(project, "dvc", "repro")
    assert repro.returncode == 0, repro.stderr
    assert "Data and pipelines are up to date" in repro.stdout
    before = (project / "dvc.lock").read_text()
    again = run(project, "dml", "run", "tiny")
    assert again.returncode == 0, again.stderr[-3000:]
    assert "search:" not in again.stderr
    assert (project / "dvc.lock").read_text() == before


@pytest.mark.integration
def test_until_decided_adds_seeds_that_both_doors_know(project, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(project, folder, symlinks=True)
    refused = run(folder, "dml", "run", "tiny", "--most-seeds", "9")
    assert refused.returncode == 2
    assert "limit --until-decided, which is missing" in refused.stderr
    no_time = run(folder, "dml", "run", "tiny", "--until-decided", "--most-seeds", "3",
                  "--minutes", "0")  # fmt: skip
    assert no_time.returncode == 0, no_time.stderr[-3000:]
    assert "of the budget of 0 minutes are left" in no_time.stderr
    assert read_seeds(folder) == {"anchor": [0, 1], "triplet": [0, 1]}
    done = run(folder, "dml", "run", "tiny", "--until-decided", "--most-seeds", "3")
    assert done.returncode == 0, done.stderr[-3000:]
    plan = json.loads((folder / "studies" / "tiny.seeds.json").read_text())
    assert plan["sizes"] == [2, 3]
    # Two tiny models trained for an epoch differ by chance alone: all looks are needed.
    assert read_seeds(folder) == {"anchor": [0, 1, 2], "triplet": [0, 1, 2]}
    assert "2 of 2 arms are open and get seeds up to 3 each: 2 trials" in done.stderr
    trials = pd.read_parquet(folder / "results" / "tiny" / "sweep" / "trials.parquet")
    with sqlite3.connect(folder / "mlflow.db") as database:
        keys = database.execute("select count(distinct value) from tags where key = 'dml.key'")
        assert keys.fetchone()[0] >= trials["key"].nunique()
    repro = run(folder, "dvc", "repro")
    assert "Data and pipelines are up to date" in repro.stdout, repro.stderr
    again = run(folder, "dml", "run", "tiny", "--until-decided", "--most-seeds", "3")
    assert "search:" not in again.stderr
    assert "an arm has 3 seeds, the most" in again.stderr


def read_seeds(folder):
    """Returns the seeds that were evaluated, by arm."""
    scores = json.loads((folder / "results/tiny/evaluate/scores.json").read_text())["scores"]
    return {arm: sorted(map(int, by_seed)) for arm, by_seed in scores.items()}


@pytest.mark.integration
def test_the_sweep_cannot_read_the_test_images(project, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(project, folder, symlinks=True)
    # A sweep from nothing, in a project that has no test images at all.
    shutil.rmtree(folder / "results")
    shutil.rmtree(folder / "data" / "prepared" / "glyphs" / "test")
    done = run(folder, "dml", "stage", "sweep", "tiny")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "results" / "tiny" / "sweep" / "trials.parquet").exists()
    assert not (folder / "data" / "prepared" / "glyphs" / "test").exists()
    # The evaluation needs them: it misses them, and has them from DVC's cache.
    evaluated = run(folder, "dml", "stage", "evaluate", "tiny")
    assert evaluated.returncode == 0, evaluated.stderr[-3000:]
    assert "test/images.bin" in evaluated.stderr
    assert "restored from DVC's cache" in evaluated.stderr


@pytest.mark.integration
def test_plan_lists_trials_and_cost_without_running(project):
    done = run(project, "dml", "plan", "tiny")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "anchor-0" in done.stdout
    assert "4 search and 4 repeat trials" in done.stdout
    assert "stale stages: none" in done.stdout


@pytest.mark.nightly
@pytest.mark.integration
def test_an_edit_in_mid_sweep_is_neither_used_nor_recorded(tmp_path):
    folder = make_project(tmp_path, {"tiny": TWO_ARMS})
    file = folder / "studies" / "tiny.yaml"
    before = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    with open(folder / "home" / "said.txt", "w+") as said:
        running = subprocess.Popen(
            ["dml", "run", "tiny"], cwd=folder, env=make_environment(), stdout=said, stderr=said
        )
        try:
            wait_for_stage(folder, "sweep", running)
            file.write_text(TWO_ARMS.replace("seeds: [0]", "seeds: [1, 2]"))
            running.wait(timeout=400)
        finally:
            running.kill()
            running.wait()
        said.seek(0)
        printed = said.read()
    assert running.returncode == 0, printed[-3000:]
    expected = "sweep@tiny is stale: studies/tiny.yaml changed after this run began"
    assert expected in " ".join(printed.split())
    scores = json.loads((folder / "results/tiny/evaluate/scores.json").read_text())["scores"]
    assert {arm: sorted(seeds) for arm, seeds in scores.items()} == {
        "anchor": ["0"],
        "triplet": ["0"],
    }
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    for stage in ("sweep", "evaluate", "report"):
        hashes = {entry["path"]: entry["md5"] for entry in stages[f"{stage}@tiny"]["deps"]}
        assert hashes["studies/tiny.yaml"] == before
    stale = ["sweep@tiny", "evaluate@tiny", "report@tiny"]
    assert stale_stages(folder, ["report@tiny"]) == stale


def wait_for_stage(folder, stage, running):
    """Returns once a run works on a stage."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and running.poll() is None:
        logs = list_logs(folder / "results" / ".sweeps" / "tiny")
        for line in read_log(logs[-1]) if logs else []:
            if line["event"] == "stage started" and line["stage"] == stage:
                return
        time.sleep(0.2)
    pytest.fail(f"the run ended or hung before {stage}")


def run_and_watch(folder, *command):
    """Runs a command; returns it and the pids of the Ray clusters that it started."""
    with (folder / "printed.txt").open("w") as printed:
        started = subprocess.Popen(
            command, cwd=folder, env=make_environment(), stdout=printed, stderr=printed
        )
        seen, deadline = set(), time.monotonic() + 900
        try:
            while started.poll() is None and time.monotonic() < deadline:
                # Each cluster has one GCS, which lives as long as the cluster.
                with contextlib.suppress(psutil.NoSuchProcess):
                    below = psutil.Process(started.pid).children(recursive=True)
                    seen |= {process.pid for process in below if is_gcs(process)}
                time.sleep(0.2)
        finally:
            started.terminate()
            started.wait(60)
    return started, seen


def is_gcs(process):
    try:
        return process.name() == "gcs_server"
    except psutil.NoSuchProcess:
        return False


@pytest.mark.integration
def test_one_run_of_several_studies_starts_one_cluster(tmp_path):
    other = TWO_ARMS + "fixed: {model.embedding_dim: 4}\n"
    folder = make_project(tmp_path / "project", {"one": TWO_ARMS, "two": other})
    ended, clusters = run_and_watch(folder, "dml", "run", "one", "two")
    assert ended.returncode == 0, (folder / "printed.txt").read_text()[-3000:]
    tables = [folder / "results" / name / "sweep" / "trials.parquet" for name in ("one", "two")]
    # Both were trained: neither has the trials of the other.
    assert pd.concat(map(pd.read_parquet, tables))["key"].nunique() == 4
    assert len(clusters) == 1


@pytest.mark.integration
def test_mistakes_inside_a_run_end_in_one_line_also_without_git(tmp_path):
    missing = "fixed: {data.name: folder, data.raw: pictures, data.alias: own}\n"
    folder = make_project(tmp_path, {"tiny": TWO_ARMS + missing})
    shutil.rmtree(folder / ".git")
    done = run(folder, "dml", "run", "tiny")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Finished in state" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "pictures" in line]
    assert len(lines) == 1
    assert lines[0].startswith("dml: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("trials_per_arm: 2", "trials_per_arms: 2"),
        ("seeds: [0, 1]", "seeds: [0, 0]"),
        ("{uniform: [0.05, 0.3]}", "{uniform: [0.3, 0.05]}"),
        ("y: test.recall_at_1", "y: test.recall_at_3"),
    ],
)
def test_mistakes_in_a_study_are_found_before_anything_runs(tmp_path, change, message):
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "tiny.yaml").write_text(STUDY.replace(change, message))
    for command in (["check"], ["run", "tiny"]):
        done = run(tmp_path, "dml", *command)
        assert done.returncode == 2
        assert "studies/tiny.yaml" in done.stderr
        assert "Traceback" not in done.stderr


# The last test of the file: it deletes what the others use.
@pytest.mark.integration
def test_cleaning_frees_the_disk_and_leaves_true_records(project):
    before = json.loads(run(project, "dml", "disk", "--json").stdout)
    sizes = before["studies"]["tiny"]
    assert min(sizes[kind] for kind in ("trials", "sweep", "evaluation", "report", "mlflow")) > 0
    asked = run(project, "dml", "clean", "tiny")
    assert asked.returncode == 1
    assert "journals with their checkpoints" in asked.stdout
    assert json.loads(run(project, "dml", "disk", "--json").stdout)["studies"] == before["studies"]
    done = run(project, "dml", "clean", "tiny", "--yes")
    assert done.returncode == 0, done.stderr
    assert "dvc.lock loses sweep@tiny, evaluate@tiny, report@tiny" in done.stdout
    after = json.loads(run(project, "dml", "disk", "--json").stdout)
    assert after["studies"]["tiny"]["trials"] == after["studies"]["tiny"]["sweep"] == 0
    cached = [
        next(each["bytes"] for each in found["shared"] if each["what"] == "DVC's cache")
        for found in (before, after)
    ]
    assert cached[1] < cached[0]
    assert list((project / "results" / ".trials").glob("[!.]*")) == []
    assert (project / "reports" / "tiny" / "index.html").is_file()
    assert "report:" in run(project, "dml", "open", "tiny", "--print").stdout
    # DVC has no stage of the study to run, and MLflow has the registered model's runs alone.
    assert set(yaml.safe_load((project / "dvc.lock").read_text())["stages"]) == {"prepare"}
    assert json.loads((project / "studies" / "tracked.json").read_text()) == {"studies": {}}
    repro = run(project, "dvc", "repro")
    assert "Data and pipelines are up to date" in repro.stdout, repro.stderr
    with sqlite3.connect(project / "mlflow.db") as database:
        query = "select lifecycle_stage, count(*) from runs group by lifecycle_stage"
        counts = dict(database.execute(query).fetchall())
        (model,) = database.execute("select storage_location from model_versions").fetchall()
    assert counts["active"] == 2
    assert counts["deleted"] > 4
    assert any(Path(model[0].removeprefix("file://")).iterdir())
    said = run(project, "dml", "plan", "tiny").stdout
    assert "stale stages: prepare, sweep@tiny, evaluate@tiny, report@tiny" in said
