"""Registers a study's winner as an MLflow model, or saves it as one to a folder."""

import base64
import io
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from dml_core.config.pipeline import MlflowConfig
from dml_core.data.prepared_info import hash_file
from dml_core.training.checkpoint import Checkpoint, load_checkpoint
from tasks.tracking import embedding_loader as loader
from tasks.tracking.address import Tracking, TrackingError, changed_environment, silence_mlflow
from tasks.tracking.identity import name_model
from tasks.tracking.packing import list_requirements, name_package, pack_code, pack_model

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DIGEST_TAG = "dml.checkpoint"
LOADER_TAG = "dml.loader"
"""Name of the loader package of a version."""
MODEL_TAG = "dml.model"
"""MLflow's id of the logged model behind a version, which has its metrics."""
MODEL_NAME = "winner"
PYFUNC_PACKAGES = ("mlflow", "numpy", "pillow", "torch")
TAKES = (
    "One image or a list, each a path, the bytes of an image file, their base64 text, a Pillow "
    "image or a uint8 array (H, W), (H, W, C) or (C, H, W), of any size; a uint8 batch "
    "(B, H, W, C) or (B, C, H, W); or a table with a column `image` of these. A server takes "
    '{"inputs": [...]} with base64 text and arrays, no paths.'
)
"""Inputs of the model's `predict`, for people: a signature has a name and a type only."""


@dataclass(frozen=True)
class RegisteredWinner:
    """A registered version of a packed model."""

    name: str
    version: str
    alias: str
    is_champion: bool = True
    """Whether the alias points to this version."""

    @property
    def uri(self) -> str:
        """The address for `mlflow.pyfunc.load_model`."""
        return f"models:/{self.name}" + (
            f"@{self.alias}" if self.is_champion else f"/{self.version}"
        )


def register_winner(
    tracking: Tracking, config: MlflowConfig, *, study: str, run_id: str, checkpoint: Path
) -> RegisteredWinner:
    """Logs a checkpoint's model to a run and registers it as a version; twice is safe.

    The alias is set if no version has it; only `promote_winner` moves it. A second call with the
    same checkpoint changes nothing, unless the loader's code changed: then the checkpoint is packed
    anew, and the alias follows if it pointed to the former version.

    Args:
        tracking: the store.
        config: the registered model's name and its alias.
        study: name of the study, or of the folder of its results.
        run_id: the run of the model: that of its training.
        checkpoint: the trained model.
    """
    client, name = tracking.client(), name_model(config, study)
    digest = hash_file(checkpoint)
    former = _find_version(client, name, digest)
    champion = _find_champion(client, name, config.alias)
    version = former if former and _is_packed_as_now(client, name, former) else None
    if version is None:
        version, model_id = _log_model(tracking, run_id, name, load_checkpoint(checkpoint))
        client.set_model_version_tag(name, version, MODEL_TAG, model_id)
        client.set_model_version_tag(name, version, LOADER_TAG, name_package())
        client.set_model_version_tag(name, version, DIGEST_TAG, digest)
    # The same checkpoint with another loader is the same winner.
    if champion in (None, former):
        client.set_registered_model_alias(name, config.alias, version)
        champion = version
    return RegisteredWinner(name, version, config.alias, is_champion=champion == version)


def promote_winner(
    tracking: Tracking, config: MlflowConfig, *, study: str, checkpoint: Path
) -> RegisteredWinner:
    """Moves the alias to the version that was registered from a checkpoint; twice is safe.

    Raises:
        TrackingError: where no version was registered from it.
    """
    client, name = tracking.client(), name_model(config, study)
    version = _find_version(client, name, hash_file(checkpoint))
    if version is None:
        raise TrackingError(
            f"the model {name} has no version of {checkpoint} to promote. "
            f"Register it first: dml run {study} --force"
        )
    client.set_registered_model_alias(name, config.alias, version)
    return RegisteredWinner(name, version, config.alias)


def save_pyfunc(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes a checkpoint's model to a folder that does not exist yet, as MLflow's pyfunc."""
    import mlflow

    silence_mlflow()
    with _packed_arguments(checkpoint) as arguments:
        mlflow.pyfunc.save_model(path=str(folder), **arguments)


def _log_model(
    tracking: Tracking, run_id: str, name: str, checkpoint: Checkpoint
) -> tuple[str, str]:
    """Returns the version of the registered model, and the id of the logged one."""
    import mlflow

    with _packed_arguments(checkpoint) as arguments, _current_run(tracking, run_id):
        info = mlflow.pyfunc.log_model(
            name=MODEL_NAME,
            registered_model_name=name,
            # MLflow adds the run's metrics of this step to the model.
            step=checkpoint.selected_epoch,
            **arguments,
        )
    return str(info.registered_model_version), str(info.model_id)


@contextmanager
def _packed_arguments(checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    """Yields what MLflow needs to save the packed model of a checkpoint."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as temporary:
        # Importing this part of MLflow warns of a type hint in MLflow's own sources.
        warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType")
        data = Path(temporary) / "model"
        pack_model(checkpoint, data)
        package = pack_code(Path(temporary) / "code")
        yield {
            "loader_module": f"{package.name}.loader",
            "data_path": str(data),
            "code_paths": [str(package)],
            "signature": _make_signature(checkpoint.config.model.embedding_dim),
            "input_example": _make_example(checkpoint.config.input_size_px),
            "metadata": {"takes": TAKES},
            "pip_requirements": list_requirements(*PYFUNC_PACKAGES),
        }


def _make_example(size_px: int) -> dict[str, list[str]]:
    """Returns one image, as base64 text of a PNG file."""
    ramp = np.tile(np.linspace(0, 255, size_px, dtype=np.uint8), (size_px, 1))
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "PNG")
    return {loader.IMAGE_COLUMN: [base64.b64encode(file.getvalue()).decode()]}


def _make_signature(embedding_dim: int) -> Any:
    """Returns a signature that names the input, of any type, and the embeddings."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    embeddings = TensorSpec(np.dtype(np.float32), (-1, embedding_dim), name=None)
    signature = ModelSignature(
        inputs=Schema([ColSpec(AnyType(), name=loader.IMAGE_COLUMN)]),
        outputs=Schema([embeddings]),
    )
    # MLflow would turn every list into a table of texts or numbers, or refuse it. With this mark
    # it passes inputs on as they are: the loader checks them.
    signature._is_signature_from_type_hint = True
    return signature


@contextmanager
def _current_run(tracking: Tracking, run_id: str) -> Iterator[None]:
    """Makes a run the active one, since MLflow's module-level functions take no client."""
    import mlflow

    client = tracking.client()
    status = client.get_run(run_id).info.status
    addresses = {"MLFLOW_TRACKING_URI": tracking.uri, "MLFLOW_REGISTRY_URI": tracking.uri}
    # MLflow's setters change these variables permanently.
    with changed_environment(addresses):
        mlflow.set_tracking_uri(tracking.uri)
        try:
            with mlflow.start_run(run_id=run_id):
                yield
        finally:
            mlflow.set_tracking_uri(cast(str, None))
            client.update_run(run_id, status=status)


def _find_version(client: "MlflowClient", name: str, digest: str) -> str | None:
    """Returns the newest version of a model that was registered from a checkpoint."""
    from mlflow.exceptions import MlflowException

    try:
        versions = client.search_model_versions(f"name = '{name}'")
    except MlflowException:
        return None
    fitting = [int(each.version) for each in versions if each.tags.get(DIGEST_TAG) == digest]
    return str(max(fitting)) if fitting else None


def _is_packed_as_now(client: "MlflowClient", name: str, version: str) -> bool:
    return bool(client.get_model_version(name, version).tags.get(LOADER_TAG) == name_package())


def _find_champion(client: "MlflowClient", name: str, alias: str) -> str | None:
    """Returns the version that the alias points to."""
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(name, alias).version)
    except MlflowException:
        return None
