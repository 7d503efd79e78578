"""Empty databases of Prefect and MLflow, made once for all tests: that takes half a minute."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from dml_core.config.pipeline import MlflowConfig
from tasks.adapters.mlflow_address import open_tracking

FOLDER_VARIABLE = "DML_TEST_DATABASES"
"""Where the processes of one test run find the databases; set by the first of them."""
PREFECT_DATABASE = Path(".dml") / "prefect" / "prefect.db"
MLFLOW_DATABASE = Path("mlflow.db")


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
        shutil.copyfile(make_databases() / name, target)
    return project


def make_databases() -> Path:
    """Returns the folder that holds both, made by the first who asks."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with FileLock(folder / "lock"):
        if not (folder / "made").exists():
            _make(folder)
            (folder / "made").touch()
    return folder


def _make(folder: Path) -> None:
    home = (folder / PREFECT_DATABASE).parent
    home.mkdir(parents=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    subprocess.run(
        [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env={**kept, "PREFECT_HOME": str(home), "HOME": str(folder)},
        capture_output=True,
        check=True,
    )
    open_tracking(MlflowConfig(tracking_uri="sqlite:///mlflow.db"), project=folder)
