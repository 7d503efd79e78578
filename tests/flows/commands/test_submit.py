"""Runs that a real Ray cluster conducts: handed over, followed, stopped."""

import json
import os
import sys
from pathlib import Path

import pytest

from flows.commands.submit import _make_command
from tasks.study import CONDUCTED, StudyRequest, load_context
from tasks.submission import _make_entrypoint
from tests.references.ray_clusters import Cluster, free_port
from tests.references.running_servers import run_dml, wait_for
from tests.references.tiny_projects import ENDLESS, TWO_ARMS, make_project


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One node of two CPUs with a dashboard, which finds `dml`."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    head = Cluster(tmp_path_factory.mktemp("cluster"), cpus=2, environment={"PATH": programs})
    try:
        head.start_head(dashboard=True)
        yield head
    finally:
        head.stop()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("submitted") / "project"
    return make_project(folder, {"main": TWO_ARMS, "endless": ENDLESS})


def dml(project, cluster, *arguments, **extra):
    variables = {**cluster.variables, "NO_PROXY": "127.0.0.1", **extra}
    return run_dml(project, *arguments, "--address", cluster.dashboard, **variables)


def test_the_command_line_keeps_names_and_values_apart(tmp_path):
    command = _make_command(
        ["a", "b"], params=Path("other.yaml"), profile="smoke", overrides=["data.name=my birds"]
    )
    assert command == [
        *("dml", "run", "a", "b", "--params", "other.yaml", "--profile", "smoke"),
        *("--set", "data.name=my birds"),
    ]
    line = _make_entrypoint(["echo", "$HOME; ls"], str(tmp_path))
    assert os.popen(line).read() == "$HOME; ls\n"  # noqa: S605
    elsewhere = _make_entrypoint(["echo", "reached"], str(tmp_path / "it's away"))
    assert "has no folder" in os.popen(elsewhere).read()  # noqa: S605


def test_a_submitted_run_uses_its_cluster_and_the_folders_of_the_study(project, monkeypatch):
    monkeypatch.chdir(project)
    request = StudyRequest(study="main")
    assert load_context(request).project.pipeline.ray.address == "local"
    monkeypatch.setenv(CONDUCTED, "1")
    placed = load_context(request)
    assert placed.project.pipeline.ray.address == "auto"
    assert placed.sweep_folder == Path("results/main/sweep")


def test_a_command_without_an_address_says_how_to_give_one(project):
    done = run_dml(project, "submit", "main")
    assert done.returncode == 2
    assert "--address http://head:8265" in done.stderr


@pytest.mark.integration
def test_a_wrong_address_study_or_token_ends_in_a_message(project, cluster, tmp_path):
    nothing = f"http://127.0.0.1:{free_port()}"
    done = run_dml(project, "submit", "main", "--address", nothing, **cluster.variables)
    assert done.returncode == 2
    assert f"no Ray cluster answers at {nothing}" in done.stderr
    done = dml(project, cluster, "submit", "mian")
    assert (done.returncode, "Did you mean 'main'" in done.stderr) == (2, True)
    done = dml(project, cluster, "logs", "main")
    assert (done.returncode, "no run of main was submitted" in done.stderr) == (2, True)
    (tmp_path / "token").write_text("0" * 64)
    (tmp_path / "token").chmod(0o600)
    done = dml(project, cluster, "submit", "main", RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert done.returncode == 2
    assert f"the Ray cluster at {cluster.dashboard} refuses the token" in done.stderr
    assert "0" * 64 not in done.stderr


@pytest.mark.nightly
@pytest.mark.integration
def test_a_submitted_run_is_stopped_and_keeps_its_epochs(project, cluster):
    done = dml(project, cluster, "submit", "endless")
    assert done.returncode == 0, done.stderr
    assert "endless: running on http://127.0.0.1:" in done.stdout
    again = dml(project, cluster, "submit", "endless")
    assert again.returncode == 2
    assert "endless runs on the cluster already, as dml-endless-" in again.stderr
    trials = project / "results" / ".trials"
    assert wait_for(lambda: list(trials.glob("*/checkpoints/*")), seconds=300), dml(
        project, cluster, "logs", "endless"
    ).stdout
    stopped = dml(project, cluster, "stop", "endless")
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped; the same dml submit resumes it" in stopped.stdout
    assert list(trials.glob("*/checkpoints/*"))
    assert not list(trials.glob("*/result.json"))
    log = dml(project, cluster, "logs", "endless").stdout
    assert "interrupted" in log, log
    assert "has ended already" in dml(project, cluster, "stop", "endless").stdout


@pytest.mark.integration
def test_a_submitted_run_answers_its_study_and_is_followed_to_its_end(project, cluster):
    done = dml(project, cluster, "submit", "main")
    assert done.returncode == 0, done.stderr
    followed = dml(project, cluster, "logs", "main", "--follow")
    assert followed.returncode == 0, followed.stdout
    assert "Which of two losses?" in followed.stdout
    assert followed.stdout.rstrip().endswith("succeeded")
    answer = json.loads((project / "reports" / "main" / "answer.json").read_text())
    assert answer["question"] == "Which of two losses?"


@pytest.mark.nightly
@pytest.mark.integration
def test_a_folder_that_the_head_does_not_have_is_named(project, cluster):
    done = dml(project, cluster, "submit", "main", "--folder", "/nowhere/project")
    if done.returncode == 0:
        done = dml(project, cluster, "logs", "main", "--follow")
        assert done.returncode == 1
    assert "has no folder /nowhere/project" in done.stdout + done.stderr
