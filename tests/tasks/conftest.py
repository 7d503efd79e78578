import shutil

import pytest

from dml_core.config.pipeline import MlflowConfig
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.sources.registry import list_images
from dml_core.training.checkpoint import checkpoint_path
from dml_core.training.in_folder import train_in_folder
from tasks.tracking.address import open_tracking
from tests.references.recorded_sweeps import make_study


@pytest.fixture(scope="session")
def empty_mlflow_database(tmp_path_factory):
    """A database without runs; making one takes seconds, copying it nothing."""
    folder = tmp_path_factory.mktemp("mlflow")
    open_tracking(MlflowConfig(tracking_uri="sqlite:///mlflow.db"), project=folder)
    return folder / "mlflow.db"


@pytest.fixture
def mlflow_config(tmp_path, empty_mlflow_database):
    """A local store in tmp_path."""
    shutil.copy(empty_mlflow_database, tmp_path / "mlflow.db")
    return MlflowConfig(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture
def tracking(tmp_path, mlflow_config):
    return open_tracking(mlflow_config, project=tmp_path)


@pytest.fixture(scope="session")
def trained_winners(tmp_path_factory):
    """A study, the records of its winners' trainings, and the folder with their checkpoints."""
    root = tmp_path_factory.mktemp("winners")
    study = make_study(root)
    data = study.arm_config("dim_8").data
    prepare_dataset(list_images(data), data, workers=1)
    values = {"optimizer.learning_rate": 0.001}
    for spec in study.repeat_specs({"dim_8": values, "dim_16": values}):
        folder = root / "winners" / spec.trial_id
        result = train_in_folder(spec.config, open_development(data), folder)
        newest = checkpoint_path(folder / "checkpoints", result.epoch)
        shutil.copy(newest, folder / "checkpoint.pt")
    return study, root / "winners"
