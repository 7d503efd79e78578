"""Empty databases of Prefect and MLflow, made once for all tests: that takes half a minute."""

import os
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from flows.drills.databases import MLFLOW_DATABASE, PREFECT_DATABASE, make_databases

FOLDER_VARIABLE = "DML_TEST_DATABASES"
"""Where the processes of one test run find the databases; set by the first of them."""


def begin() -> None:
    """Makes the folder, in the process that starts the others."""
    os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="dml-tests-")


def end() -> None:
    """Removes the folder."""
    shutil.rmtree(os.environ.pop(FOLDER_VARIABLE), ignore_errors=True)


def give_databases(project: Path) -> Path:
    """Puts both databases where a project has them, and returns the project."""
    for name in (PREFECT_DATABASE, MLFLOW_DATABASE):
        target = project / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(find_databases() / name, target)
    return project


def find_databases() -> Path:
    """Returns the folder with both databases, which are made at the first call."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with FileLock(folder / "lock"):
        if not (folder / "made").exists():
            make_databases(folder)
            (folder / "made").touch()
    return folder
