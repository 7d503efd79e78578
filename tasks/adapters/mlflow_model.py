"""Packs a study's winner as an MLflow model and registers it.

The model is an exported program with its weights: loading it runs no pickled code and imports
nothing of this project.
"""

import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dml_core.config.pipeline import MlflowConfig
from dml_core.training.checkpoint import Checkpoint, load_checkpoint
from tasks.adapters import mlflow_embedding_loader as loader
from tasks.adapters.mlflow_address import Tracking, TrackingError, changed_environment
from tasks.adapters.mlflow_values import to_name

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DIGEST_TAG = "dml.checkpoint"
MODEL_NAME = "winner"


@dataclass(frozen=True)
class RegisteredWinner:
    """Where a packed model is."""

    name: str
    version: str
    alias: str
    is_champion: bool = True
    """Whether the alias stands at this version."""

    @property
    def uri(self) -> str:
        """What `mlflow.pyfunc.load_model` takes."""
        return f"models:/{self.name}" + (
            f"@{self.alias}" if self.is_champion else f"/{self.version}"
        )


def register_winner(
    tracking: Tracking, config: MlflowConfig, *, study: str, run_id: str, checkpoint: Path
) -> RegisteredWinner:
    """Logs a checkpoint's model to a run and registers it as a version.

    The alias is set where nothing has it yet; it moves by `promote_winner` alone. The same
    checkpoint again changes nothing.

    Args:
        tracking: the store.
        config: the registered model's name and its alias.
        study: name of the study, or of the folder of its results.
        run_id: the run that the model belongs to, such as that of the winning arm.
        checkpoint: the trained model.
    """
    client, name = tracking.client(), _model_name(config, study)
    digest = _hash_file(checkpoint)
    version = _find_version(client, name, digest)
    if version is None:
        version = _log_model(tracking, run_id, name, load_checkpoint(checkpoint))
        client.set_model_version_tag(name, version, DIGEST_TAG, digest)
    champion = _find_champion(client, name, config.alias)
    if champion is None:
        client.set_registered_model_alias(name, config.alias, version)
    return RegisteredWinner(name, version, config.alias, is_champion=champion in (None, version))


def promote_winner(
    tracking: Tracking, config: MlflowConfig, *, study: str, checkpoint: Path
) -> RegisteredWinner:
    """Moves the alias to the version that was registered from a checkpoint; twice is safe.

    Raises:
        TrackingError: where no version was.
    """
    client, name = tracking.client(), _model_name(config, study)
    version = _find_version(client, name, _hash_file(checkpoint))
    if version is None:
        raise TrackingError(
            f"the model {name} has no version of {checkpoint} to promote. "
            f"Register it first: dml run {study} --force"
        )
    client.set_registered_model_alias(name, config.alias, version)
    return RegisteredWinner(name, version, config.alias)


def _model_name(config: MlflowConfig, study: str) -> str:
    return to_name(config.registered_model.replace("{study}", study))


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pack_model(checkpoint: Checkpoint, folder: Path) -> np.ndarray:
    """Writes the exported program and what its loader must know; returns an input example."""
    import torch

    from dml_core.evaluation.of_checkpoint import load_trained_model

    config = checkpoint.config
    model = load_trained_model(checkpoint).requires_grad_(False)
    size = config.input_size_px
    example = _make_example(checkpoint.in_channels, size)
    images = torch.from_numpy(example.transpose(0, 3, 1, 2).copy())
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    folder.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(model, (images,), dynamic_shapes=shapes)
    torch.export.save(program, folder / loader.PROGRAM_FILE)
    facts = {
        "channels": checkpoint.in_channels,
        "input_size_px": size,
        "evaluation_crop": config.augmentation.evaluation_crop,
        "batch_size": config.evaluation.batch_size,
        "data_hash": checkpoint.data_hash,
    }
    (folder / loader.FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return example


def _make_example(channels: int, size_px: int) -> np.ndarray:
    """Returns two images: torch would take a batch of one as the only size there is."""
    ramp = np.linspace(0, 255, size_px, dtype=np.uint8)
    image = np.broadcast_to(ramp[:, None, None], (size_px, size_px, channels))
    return np.ascontiguousarray(np.stack([image, image.transpose(1, 0, 2)]))


def _log_model(tracking: Tracking, run_id: str, name: str, checkpoint: Checkpoint) -> str:
    import mlflow

    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as temporary,
        _current_run(tracking, run_id),
    ):
        # MLflow warns of a type hint in its own sources when this part of it is imported.
        warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType")
        data = Path(temporary) / "model"
        example = pack_model(checkpoint, data)
        info = mlflow.pyfunc.log_model(
            name=MODEL_NAME,
            loader_module=Path(loader.__file__).stem,
            data_path=str(data),
            code_paths=[loader.__file__],
            signature=_make_signature(checkpoint.config.model.embedding_dim),
            input_example=example,
            pip_requirements=_list_requirements(),
            registered_model_name=name,
        )
    return str(info.registered_model_version)


def _make_signature(embedding_dim: int) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    # Both orders of axes are taken, so the shape cannot say which axis has the channels.
    images = TensorSpec(np.dtype(np.uint8), (-1, -1, -1, -1), name=None)
    embeddings = TensorSpec(np.dtype(np.float32), (-1, embedding_dim), name=None)
    return ModelSignature(inputs=Schema([images]), outputs=Schema([embeddings]))


def _list_requirements() -> list[str]:
    from importlib.metadata import version

    # A local version such as 2.14.1+cpu is on no index.
    return [f"{name}=={version(name).split('+')[0]}" for name in ("mlflow", "numpy", "torch")]


@contextmanager
def _current_run(tracking: Tracking, run_id: str) -> Iterator[None]:
    """Makes a run the one that MLflow's functions write to, as they take no client."""
    import mlflow

    client = tracking.client()
    status = client.get_run(run_id).info.status
    addresses = {"MLFLOW_TRACKING_URI": tracking.uri, "MLFLOW_REGISTRY_URI": tracking.uri}
    # MLflow's setters write these variables, which would outlive this call.
    with changed_environment(addresses):
        mlflow.set_tracking_uri(tracking.uri)
        try:
            with mlflow.start_run(run_id=run_id):
                yield
        finally:
            mlflow.set_tracking_uri(cast(str, None))
            client.update_run(run_id, status=status)


def _find_version(client: "MlflowClient", name: str, digest: str) -> str | None:
    """Returns the newest version of a model that was made from a checkpoint."""
    from mlflow.exceptions import MlflowException

    try:
        versions = client.search_model_versions(f"name = '{name}'")
    except MlflowException:
        return None
    fitting = [int(each.version) for each in versions if each.tags.get(DIGEST_TAG) == digest]
    return str(max(fitting)) if fitting else None


def _find_champion(client: "MlflowClient", name: str, alias: str) -> str | None:
    """Returns the version that the alias stands at."""
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(name, alias).version)
    except MlflowException:
        return None
