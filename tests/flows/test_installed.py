"""The built wheel in a fresh environment: `dml init` and a study there, without any clone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.references.empty_databases import give_databases

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
BUILT = (
    *("dml_core", "tasks", "flows", "studies", "data"),
    *("pyproject.toml", "setup.py", "README.md", "LICENSE", "params.yaml", "dvc.yaml"),
    *(".gitignore", ".dvcignore", "requirements.lock"),
)
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of these sources, built in a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("build")
    for name in BUILT:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, copy)
    subprocess.run(
        [sys.executable, "-c", BUILD, "dist"], cwd=folder, check=True, capture_output=True
    )
    (path,) = (folder / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def dml(wheel, tmp_path_factory):
    """The command of a fresh environment that has the wheel, and the locked packages by a path."""
    folder = tmp_path_factory.mktemp("fresh") / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    # Installing seven gigabytes again would take minutes; a folder that a .pth file names comes
    # after the environment's packages, and the editable install in it has no effect.
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "locked.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin" / "dml"


def run(dml, folder, *arguments):
    left_out = ("PYTHONPATH", "PREFECT", "MLFLOW", "DML_SOURCES")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    path = f"{dml.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(dml), *arguments],
        cwd=folder,
        env={**kept, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_wheel_has_the_packages_their_files_and_a_project(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        *("flows/cli.py", "tasks/sweep/run.py", "dml_core/losses/triplet.py"),
        *("tasks/report_page/page.css", "tasks/report_page/page.html.jinja"),
        *(f"tasks/project_template/{name}" for name in ("params.yaml", "dvc.yaml", ".gitignore")),
        "tasks/project_template/studies/main.yaml",
    }
    assert wanted - names == set()
    assert [name for name in names if name.startswith("tests/")] == []


def test_a_study_is_answered_in_a_project_of_an_installed_wheel(dml, tmp_path):
    installed = run(dml, tmp_path, "--version")
    assert str(dml.parents[1]) in installed
    said = run(dml, tmp_path, "init", "project")
    assert "project is a project with" in said
    project = tmp_path / "project"
    assert not (project / "flows").exists()
    give_databases(project)
    printed = run(dml, project, "run", "main", "--profile", "smoke")
    assert "open:    dml open main --profile smoke" in printed
    report = project / "reports" / "main@smoke"
    facts = (report / "index.html").read_text()
    assert "dml run main --profile smoke" in facts
    assert json.loads((report / "answer.json").read_text())["recommendation"]
    # DVC runs a stage by the same command, and depends on the code by its hash.
    dvc = [str(dml.with_name("python")), "-m", "dvc", "repro", "--single-item", "prepare"]
    path = f"{dml.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(dvc, cwd=project, env={**os.environ, "PATH": path}, check=True, timeout=300)
    lock = (project / "dvc.lock").read_text()
    assert json.loads((project / "code.json").read_text())["prepare"] in lock
    assert "stale stages: sweep@main, evaluate@main, report@main" in run(
        dml, project, "plan", "main"
    )
