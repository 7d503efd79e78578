"""Empty databases of Prefect and MLflow, created once per test run: that takes half a minute."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from dml_core.config.pipeline import MlflowConfig

PREFECT_DATABASE = Path(".dml") / "prefect" / "prefect.db"
MLFLOW_DATABASE = Path("mlflow.db")
FOLDER_VARIABLE = "DML_TEST_DATABASES"
"""Environment variable with the folder of the databases; set by the first process of a test run."""


def begin() -> None:
    """Creates the folder, in the process that starts the test workers."""
    os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="dml-tests-")


def end() -> None:
    """Removes the folder."""
    shutil.rmtree(os.environ.pop(FOLDER_VARIABLE), ignore_errors=True)


def give_databases(project: Path) -> Path:
    """Copies both databases into a project, and returns the project."""
    copy_databases(find_databases(), project)
    return project


def find_databases() -> Path:
    """Returns the folder with both databases; the first call creates them."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with FileLock(folder / "lock"):
        if not (folder / "made").exists():
            make_databases(folder)
            (folder / "made").touch()
    return folder


def copy_databases(source: Path, project: Path) -> None:
    """Copies both databases to their places in a project."""
    for name in (PREFECT_DATABASE, MLFLOW_DATABASE):
        target = project / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target)


def make_databases(folder: Path) -> Path:
    """Creates both databases in a folder, at their places in a project; returns the folder."""
    from tasks.tracking.address import open_tracking

    home = (folder / PREFECT_DATABASE).parent
    home.mkdir(parents=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    upgrade = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env={**kept, "PREFECT_HOME": str(home), "HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        open_tracking(MlflowConfig(tracking_uri="sqlite:///mlflow.db"), project=folder)
    finally:
        code = upgrade.wait()
    if code != 0:
        raise RuntimeError(f"`prefect server database upgrade` ended with code {code}.")
    return folder
