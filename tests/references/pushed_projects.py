"""Projects whose tiny data are in a remote, for nodes that fetch them from there."""

import shutil
from pathlib import Path

from tasks.versioning.remote import push_data
from tasks.versioning.repo import commit_stage
from tests.references.dvc_projects import make_project, run_dvc
from tests.references.tiny_trials import prepare_tiny


def make_pushed_project(root: Path) -> Path:
    """Makes `root/project` with the data pushed to `root/storage`, and without any code."""
    folder = make_project(root / "project", studies=("a",))
    prepare_tiny(folder / "data" / "prepared")
    commit_stage(folder, "prepare")
    run_dvc(folder, "remote", "add", "--default", "storage", str(root / "storage"))
    push_data(folder)
    for name in ("dml_core", "tasks"):
        shutil.rmtree(folder / name)
    return folder
