"""What `dml init` makes; tests/flows/test_installed.py runs a study in one."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from dml_core.config.loading import load_project_config
from tasks.new_project import FolderInUse, adapt_stages, make_project
from tasks.versioning.installed_code import (
    CODE_FILE,
    STAGE_CODE,
    describe_code,
    refresh_code,
    write_code,
)
from tasks.versioning.repo import commit_stage, stale_stages
from tasks.versioning.stages import list_tracked
from tests.references.dvc_projects import list_definitions

ROOT = Path(__file__).parents[2]
CLONE = list_definitions()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "project"
    make_project(folder)
    return folder


def read_stages(text):
    return {name: each.get("do", each) for name, each in yaml.safe_load(text)["stages"].items()}


def is_code(name):
    return name.startswith(("dml_core/", "tasks/")) or name == "requirements.lock"


def test_the_code_of_each_stage_is_that_of_a_clone():
    for stage, definition in CLONE.items():
        code = [name for name in definition["deps"] if is_code(name)]
        assert set(STAGE_CODE[stage]) == set(code) - {"requirements.lock"}, stage


def test_a_stage_depends_on_its_hash_instead_of_the_sources(project):
    adapted = read_stages((project / "dvc.yaml").read_text())
    assert list(adapted) == list(CLONE)
    for stage, definition in CLONE.items():
        now = dict(adapted[stage])
        assert now.pop("deps") == [name for name in definition["deps"] if not is_code(name)]
        assert now.pop("params") == [{CODE_FILE: [stage]}, *definition.get("params", [])]
        rest = {key: value for key, value in definition.items() if key not in ("deps", "params")}
        assert now == rest


def test_the_text_of_the_stages_stays_readable():
    text = adapt_stages((ROOT / "dvc.yaml").read_text())
    assert "by its hash in code.json" in text
    assert "code folders" not in text
    assert "# The source of the images" in text


def test_a_new_project_has_studies_parameters_git_and_dvc(project):
    assert load_project_config(project / "params.yaml").trial.data.name == "glyphs"
    shipped = {path.name for path in (ROOT / "studies").glob("*.yaml")}
    assert {path.name for path in (project / "studies").glob("*.yaml")} == shipped
    assert list_tracked(project) == ["main"]
    assert not (project / "dml_core").exists()
    command = ["git", "-C", str(project), "status", "--short", "--untracked-files=all"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"dvc.yaml", "code.json", ".dvc/config", "studies/main.yaml"} <= set(listed)
    assert "analytics = false" in (project / ".dvc" / "config").read_text()
    first = ["prepare", "sweep@main", "evaluate@main", "report@main"]
    assert stale_stages(project) == first


def test_other_installed_code_makes_those_stages_stale_that_use_it(project, caplog):
    prepared = project / "data" / "prepared" / "glyphs"
    prepared.mkdir(parents=True)
    (prepared / "images.bin").write_text("pixels")
    commit_stage(project, "prepare")
    assert "prepare" not in stale_stages(project)
    refresh_code(project)
    assert caplog.text == ""
    write_code(project, {**describe_code(), "version": "0.0.9", "sweep": "former"})
    refresh_code(project)
    assert "was of dml 0.0.9 and is of the installed code now" in caplog.text
    assert "Stale: sweep." in caplog.text
    assert "prepare" not in stale_stages(project)
    # What an upgrade of the readers of data gives.
    write_code(project, {**describe_code(), "prepare": "newer"})
    assert "prepare" in stale_stages(project)
    refresh_code(project)
    assert json.loads((project / CODE_FILE).read_text()) == describe_code()


def test_a_clone_gets_no_file_of_its_code(tmp_path):
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    refresh_code(tmp_path)
    assert not (tmp_path / CODE_FILE).exists()


def test_a_folder_with_content_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FolderInUse, match=r"must be new or empty for a project\. Found thesis.tex"):
        make_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_project_in_a_repository_joins_it(tmp_path):
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    make_project(tmp_path / "work" / "study")
    assert (tmp_path / "work" / "study" / ".dvc").is_dir()
    assert not (tmp_path / "work" / "study" / ".git").exists()
