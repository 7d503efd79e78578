"""Packs a study's winner as an MLflow model and registers it.

The model is an exported program with its weights: loading it runs no pickled code and does not
import this project.
"""

import base64
import hashlib
import io
import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from dml_core.config.pipeline import MlflowConfig
from dml_core.data import image_decoding as decoding
from dml_core.data.packing import choices_of
from dml_core.training.checkpoint import Checkpoint, load_checkpoint
from tasks.tracking import embedding_loader as loader
from tasks.tracking.address import Tracking, TrackingError, changed_environment
from tasks.tracking.identity import to_name

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.tracking import MlflowClient

DIGEST_TAG = "dml.checkpoint"
LOADER_TAG = "dml.loader"
"""Name of the loader package of a version."""
MODEL_NAME = "winner"
TAKES = (
    "One image or a list, each a path, the bytes of an image file, their base64 text, a Pillow "
    "image or a uint8 array (H, W), (H, W, C) or (C, H, W), of any size; a uint8 batch "
    "(B, H, W, C) or (B, C, H, W); or a table with a column `image` of these. A server takes "
    "base64 text and arrays, no paths."
)
"""Inputs of the model's `predict`: MLflow's signature cannot express them."""


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
        run_id: the run of the model, such as that of the winning arm.
        checkpoint: the trained model.
    """
    client, name = tracking.client(), _model_name(config, study)
    digest = _hash_file(checkpoint)
    former = _find_version(client, name, digest)
    champion = _find_champion(client, name, config.alias)
    version = former if former and _is_packed_as_now(client, name, former) else None
    if version is None:
        version = _log_model(tracking, run_id, name, load_checkpoint(checkpoint))
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


def pack_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes the exported program and the facts that its loader needs."""
    import torch

    from dml_core.measures.model_scores import load_trained_model

    config = checkpoint.config
    model = load_trained_model(checkpoint).requires_grad_(False)
    size = config.input_size_px
    # Two images: torch would specialise the program to a batch of one.
    images = torch.zeros((2, checkpoint.in_channels, size, size), dtype=torch.uint8)
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    folder.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(model, (images,), dynamic_shapes=shapes)
    torch.export.save(program, folder / loader.PROGRAM_FILE)
    facts = {
        "preparation": asdict(choices_of(config.data)),
        "input_size_px": size,
        "evaluation_crop": config.augmentation.evaluation_crop,
        "batch_size": config.evaluation.batch_size,
        "data_hash": checkpoint.data_hash,
    }
    (folder / loader.FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def pack_code(folder: Path) -> Path:
    """Writes the loader and the image decoding as a package; returns its folder.

    The package is named after its content: a process may load two models, and Python imports a
    name once.
    """
    package = folder / name_package()
    package.mkdir(parents=True)
    for name, text in {**_read_code(), "__init__.py": b""}.items():
        (package / name).write_bytes(text)
    return package


def name_package() -> str:
    """Returns the name of the package with the loader and the image decoding."""
    digest = hashlib.sha256(b"\0".join(_read_code().values())).hexdigest()[:12]
    return f"dml_embedding_{digest}"


def _read_code() -> dict[str, bytes]:
    sources = {"loader.py": loader.__file__, "image_decoding.py": decoding.__file__}
    return {name: Path(path).read_bytes() for name, path in sources.items()}


def _make_example(size_px: int) -> "pd.DataFrame":
    """Returns a table with one image, as base64 text of a PNG file."""
    import pandas as pd

    ramp = np.tile(np.linspace(0, 255, size_px, dtype=np.uint8), (size_px, 1))
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "PNG")
    return pd.DataFrame({loader.IMAGE_COLUMN: [base64.b64encode(file.getvalue()).decode()]})


def _log_model(tracking: Tracking, run_id: str, name: str, checkpoint: Checkpoint) -> str:
    import mlflow

    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as temporary,
        _current_run(tracking, run_id),
    ):
        # Importing this part of MLflow warns of a type hint in MLflow's own sources.
        warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType")
        data = Path(temporary) / "model"
        pack_model(checkpoint, data)
        package = pack_code(Path(temporary) / "code")
        info = mlflow.pyfunc.log_model(
            name=MODEL_NAME,
            loader_module=f"{package.name}.loader",
            data_path=str(data),
            code_paths=[str(package)],
            signature=_make_signature(checkpoint.config.model.embedding_dim),
            input_example=_make_example(checkpoint.config.input_size_px),
            metadata={"takes": TAKES},
            pip_requirements=_list_requirements(),
            registered_model_name=name,
        )
    return str(info.registered_model_version)


def _make_signature(embedding_dim: int) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    # Without inputs: MLflow would convert every list to a table of texts or numbers, or refuse it.
    # The loader checks its inputs.
    embeddings = TensorSpec(np.dtype(np.float32), (-1, embedding_dim), name=None)
    return ModelSignature(outputs=Schema([embeddings]))


def _list_requirements() -> list[str]:
    from importlib.metadata import version

    # No index has a local version such as 2.14.1+cpu.
    return [
        f"{name}=={version(name).split('+')[0]}" for name in ("mlflow", "numpy", "pillow", "torch")
    ]


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
