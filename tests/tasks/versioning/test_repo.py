import shutil
import signal
import subprocess
import sys
import time

import pytest

from tasks.versioning.repo import (
    commit_stage,
    held_stage,
    list_changes,
    read_origins,
    stale_stages,
)
from tasks.versioning.session import DvcError, has_repo
from tests.references.dvc_projects import make_project, run_stage

HOLD = """
import sys, time
from dvc.repo import Repo
with Repo(sys.argv[1]).lock:
    print("held", flush=True)
    time.sleep(60)
"""
DIE_WHILE_DVC_WRITES = """
import os, signal, sys
from pathlib import Path
from dvc.utils.serialize import _yaml
from tasks.versioning.repo import commit_stage

def write_a_part(data, stream):
    stream.write("schema: '2.0'\\nstages: {prepare")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)

_yaml._dump = write_a_part
commit_stage(Path(sys.argv[1]), "prepare")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("project"), studies=("a",))


@pytest.fixture
def held(project):
    """Another process that holds the project's lock."""
    command = [sys.executable, "-c", HOLD, str(project)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_folder_without_dvc_is_named_with_the_command_that_helps(tmp_path):
    assert not has_repo(tmp_path)
    with pytest.raises(DvcError, match=r"dvc init") as caught:
        stale_stages(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_repository_further_up_is_not_taken(project):
    with pytest.raises(DvcError, match="Found none"):
        stale_stages(project / "studies")


def test_an_unknown_study_says_where_to_list_it(project):
    with pytest.raises(DvcError, match=r"no stage 'sweep@c'.*It names: a\..*dml run c"):
        stale_stages(project, ["sweep@c"])


def test_an_unknown_stage_suggests_a_near_one(project):
    with pytest.raises(DvcError, match=r"no stage 'prepar'.*Did you mean 'prepare'\?"):
        commit_stage(project, "prepar")


def test_a_stage_without_its_outputs_cannot_be_committed(project):
    with pytest.raises(DvcError, match=r"wrote data/prepared/glyphs, and it is gone"):
        commit_stage(project, "prepare")


def test_a_process_killed_while_dvc_writes_leaves_the_lock_file_whole(tmp_path):
    folder = make_project(tmp_path, studies=("a",))
    run_stage(folder, "prepare")
    commit_stage(folder, "prepare")
    before = (folder / "dvc.lock").read_bytes()
    command = [sys.executable, "-c", DIE_WHILE_DVC_WRITES, str(folder)]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (folder / "dvc.lock").read_bytes() == before
    # What it left behind is in no later process's way.
    commit_stage(folder, "prepare")
    assert (folder / "dvc.lock").read_bytes() == before


def test_a_broken_file_is_named(tmp_path):
    folder = make_project(tmp_path)
    (folder / "dvc.yaml").write_text("stages: [")
    with pytest.raises(DvcError, match=r"dvc\.yaml"):
        stale_stages(folder)


def test_a_locked_project_names_the_process_that_holds_it(project, held):
    started = time.perf_counter()
    with pytest.raises(DvcError, match=rf"locked by .*\(pid {held.pid}\).*Wait until"):
        stale_stages(project)
    assert time.perf_counter() - started < 15


def test_nothing_is_printed_and_the_current_folder_does_not_matter(
    project, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    run_stage(project, "prepare")
    commit_stage(project, "prepare")
    commit_stage(project, "prepare")
    assert stale_stages(project, ["prepare"]) == []
    assert capfd.readouterr() == ("", "")


def test_a_project_without_git_works(tmp_path):
    folder = make_project(tmp_path, studies=("a",))
    shutil.rmtree(folder / ".git")
    run_stage(folder, "prepare")
    assert "prepare" in stale_stages(folder)
    origin = read_origins(folder, ["prepare"])["prepare"]
    assert commit_stage(folder, "prepare", origin) == []
    assert stale_stages(folder, ["prepare"]) == []
    with held_stage(folder, "sweep@a"):
        assert list_changes(folder, "prepare", origin) == []
