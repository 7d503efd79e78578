"""DVC knows what frozen trunks made of the images."""

import subprocess

import numpy as np
import pytest

from dml_core.training.activation_store import StoredSet
from tasks.study import StudyRequest
from tasks.versioning.stages import track_activations
from tests.references.dvc_projects import make_project, run_dvc

REQUEST = StudyRequest(study="main")


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = make_project(tmp_path / "project", studies=("main",))
    study = "question: Does it train?\narms: {only: {model.embedding_dim: 8}}\nseeds: [0]\n"
    (folder / "studies" / "main.yaml").write_text(study)
    monkeypatch.chdir(folder)
    return folder


def write_some(project, view):
    stored = StoredSet(project / "data" / "prepared" / ".activations" / "glyphs-key")
    stored.write_view(view, [(0, np.ones((2, 3), np.float16))], num_images=2, facts={})
    return stored.folder


def test_new_activations_get_a_dvc_file_that_git_may_keep(project):
    folder = write_some(project, 0)
    assert [found.name for found in track_activations(REQUEST)] == ["glyphs-key"]
    named = folder.with_name("glyphs-key.dvc")
    assert "glyphs-key" in named.read_text()
    ignored = subprocess.run(
        ["git", "check-ignore", str(named), str(folder / "view_0.npy")],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ignored.stdout.split() == [str(folder / "view_0.npy")]
    assert "up to date" in run_dvc(project, "status", str(named))


def test_tracked_activations_are_left_alone_until_a_view_is_added(project):
    write_some(project, 0)
    track_activations(REQUEST)
    assert track_activations(REQUEST) == []
    write_some(project, 1)
    assert len(track_activations(REQUEST)) == 1


def test_a_changed_run_leaves_nothing_behind(project):
    write_some(project, 0)
    assert track_activations(REQUEST.model_copy(update={"overrides": ("seed=1",)})) == []
