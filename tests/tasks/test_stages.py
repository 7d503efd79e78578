"""Stages of studies that run at the same time in one project, with real processes and DVC."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tasks.adapters.dvc_session import DvcError
from tasks.adapters.dvc_waiting import wait_while_locked
from tasks.context import StudyRequest
from tasks.stages import (
    find_stale_stages,
    hold_stage,
    is_stage_stale,
    list_tracked,
    record_stage,
    track_study,
)
from tests.references.dvc_projects import environment, make_project, run_stage

ROOT = Path(__file__).parents[2]
# Says that it is there, waits for the word to begin, then asks and commits as a run does.
COMMIT = """
import sys
from tasks.context import StudyRequest
from tasks.stages import is_stage_stale, record_stage

print("ready", flush=True)
sys.stdin.readline()
request = StudyRequest(study=sys.argv[1])
for stage in ("sweep", "evaluate"):
    assert is_stage_stale(stage, request, on_wait=print), stage
    record_stage(stage, request, on_wait=print)
"""
# Holds the lock until it is told to end, as the commit of a large dataset does.
HOLD = """
import sys
from dvc.repo import Repo
with Repo(".").lock:
    print("held", flush=True)
    sys.stdin.readline()
"""


def start(folder, code, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**environment(folder), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.first_line = process.stdout.readline()
    return process


@pytest.fixture
def started():
    """Takes the processes of a test, and ends those that it leaves."""
    processes = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in which the stages of both studies ran outside DVC, and none is committed."""
    folder = make_project(tmp_path / "project")
    for stage in ("prepare", "sweep@a", "sweep@b", "evaluate@a", "evaluate@b"):
        run_stage(folder, stage)
    monkeypatch.chdir(folder)
    record_stage("prepare", StudyRequest(study="a"), on_wait=print)
    return folder


def committed(folder):
    return set(yaml.safe_load((folder / "dvc.lock").read_text())["stages"])


@pytest.mark.integration
def test_two_processes_that_commit_at_once_keep_each_others_entries(project, started):
    holder = start(project, HOLD)
    started.append(holder)
    assert holder.first_line == "held\n"
    both = [start(project, COMMIT, study) for study in "ab"]
    started.extend(both)
    assert [process.first_line for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    # Both have met the lock once each of them has told that it waits.
    for process in both:
        assert f"(pid {holder.pid})" in process.stdout.readline()
    holder.communicate("end\n")
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    own = {f"{stage}@{study}" for stage in ("sweep", "evaluate") for study in "ab"}
    assert committed(project) == {"prepare", *own}


def test_a_study_gets_its_stages_when_it_first_runs(project):
    (project / "studies" / "c.yaml").write_text("question: what of c?\n")
    request = StudyRequest(study="c")
    assert find_stale_stages(request) == ["prepare", "sweep@c", "evaluate@c", "report@c"]
    for _ in range(2):
        track_study(request)
        assert list_tracked() == ["a", "b", "c"]
    assert is_stage_stale("sweep", request, on_wait=print)
    track_study(StudyRequest(study="b", profile="smoke"))
    track_study(StudyRequest(study="d", overrides=("seed=1",)))
    assert list_tracked() == ["a", "b", "c"]


@pytest.mark.integration
def test_a_project_that_stays_locked_is_given_up_with_its_holder(project, started):
    holder = start(project, HOLD)
    started.append(holder)
    told = []
    request = StudyRequest(study="a")
    for work in (record_stage, is_stage_stale):
        with pytest.raises(DvcError, match=rf"\(pid {holder.pid}\).* 0 s are the limit"):
            work("sweep", request, on_wait=told.append, timeout_seconds=0.0)
    assert committed(project) == {"prepare"}


def test_other_errors_of_dvc_are_not_waited_for():
    def refuse():
        raise DvcError("no")

    with pytest.raises(DvcError, match="no"):
        wait_while_locked(refuse, timeout_seconds=1e9, on_wait=pytest.fail)


def test_the_shared_stage_is_held_for_one_run_and_the_others_are_not(project, started, caplog):
    code = (
        "from tasks.context import StudyRequest\n"
        "from tasks.stages import hold_stage\n"
        "import sys\n"
        "with hold_stage('prepare', StudyRequest(study='a')):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    open('first.txt', 'w').close()\n"
    )
    holder = start(project, code)
    started.append(holder)
    assert holder.first_line == "held\n"
    with hold_stage("sweep", StudyRequest(study="a")):
        assert not Path("first.txt").exists()
    with hold_stage("prepare", StudyRequest(study="a", profile="smoke")):
        assert not Path("first.txt").exists()
    holder.stdin.write("end\n")
    holder.stdin.flush()
    with caplog.at_level(logging.WARNING), hold_stage("prepare", StudyRequest(study="b")):
        assert Path("first.txt").exists()
