"""Empty databases of Prefect and MLflow, to be copied: making them takes half a minute."""

import os
import subprocess
import sys
from pathlib import Path

from dml_core.config.pipeline import MlflowConfig

PREFECT_DATABASE = Path(".dml") / "prefect" / "prefect.db"
MLFLOW_DATABASE = Path("mlflow.db")


def make_databases(folder: Path) -> Path:
    """Makes both below a folder, where a project has them; returns the folder."""
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
        raise RuntimeError(f"Prefect's database could not be made: it ended with {code}.")
    return folder
