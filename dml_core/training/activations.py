"""Caches what the frozen part of a trunk makes of each image, by content, for all trials."""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dml_core.config import TrialConfig
from dml_core.data.inputs import ALL, ImageInputs, Inputs
from dml_core.data.prepared import DevelopmentData
from dml_core.models.embedding_model import EmbeddingModel
from dml_core.seeding import numpy_stream

_FORMAT = 1
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialInputs:
    """Where a trial's training and validation inputs come from."""

    train: Inputs
    validation: Inputs
    are_activations: bool


class ActivationInputs:
    """Inputs as float32 activations, read from half-precision memory maps of one or more views."""

    def __init__(self, views: list[np.ndarray]) -> None:
        self.views = views

    def __len__(self) -> int:
        return len(self.views[0])

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        """Returns each image of a part in a view drawn at random."""
        if len(self.views) == 1:
            return self.plain(indices[part])
        chosen = stream.integers(len(self.views), size=len(indices))[part]
        rows = np.stack([self.views[v][i] for v, i in zip(chosen, indices[part], strict=True)])
        return torch.from_numpy(rows.astype(np.float32))

    def plain(self, indices: np.ndarray) -> Tensor:
        """Returns each image in the plain view."""
        return torch.from_numpy(self.views[0][indices].astype(np.float32))


def make_inputs(
    model: EmbeddingModel, data: DevelopmentData, config: TrialConfig, *, device: torch.device
) -> TrialInputs:
    """Returns pixel inputs, or cached activations where a part of the trunk is frozen."""
    train, validation = (
        ImageInputs(images, size_px=config.input_size_px, config=config.augmentation)
        for images in (data.train, data.validation)
    )
    if not is_cached(model, config):
        return TrialInputs(train, validation, are_activations=False)
    content_hash = data.info.content_hash
    return TrialInputs(
        load_activations(
            model,
            train,
            config,
            content_hash=content_hash,
            device=device,
            num_views=config.trunk.cache_views,
        ),
        load_activations(model, validation, config, content_hash=content_hash, device=device),
        are_activations=True,
    )


def is_cached(model: EmbeddingModel, config: TrialConfig) -> bool:
    """Returns whether a part of the trunk is frozen, and what it gives is kept."""
    return config.trunk.cache and len(model.frozen) > 0


def load_activations(
    model: EmbeddingModel,
    inputs: ImageInputs,
    config: TrialConfig,
    *,
    content_hash: str,
    device: torch.device,
    num_views: int = 1,
) -> ActivationInputs:
    """Returns what the frozen part makes of a set of images; computes it where nobody did before.

    Args:
        model: the model, with the frozen part of which the activations are.
        inputs: the images.
        config: of the trial.
        content_hash: of the prepared data that the images are from.
        device: where the model is.
        num_views: the first view is plain, the others are augmented.
    """
    root = config.data.prepared_path.parent / ".activations" / config.data.folder_name
    folder = root / f"{_model_key(model, config, content_hash)}-{_set_key(inputs.images.paths)}"
    return ActivationInputs(
        [_load_view(model, inputs, config, folder, view, device) for view in range(num_views)]
    )


def _model_key(model: EmbeddingModel, config: TrialConfig, content_hash: str) -> str:
    """Returns a hash of all that the activations depend on but the choice of images."""
    facts = {
        "format": _FORMAT,
        "data": content_hash,
        "network": model.frozen_fingerprint(),
        "size": config.input_size_px,
        "augmentation": config.augmentation.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


def _set_key(paths: list[str]) -> str:
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()[:12]


def _load_view(
    model: EmbeddingModel,
    inputs: ImageInputs,
    config: TrialConfig,
    folder: Path,
    view: int,
    device: torch.device,
) -> np.ndarray:
    """Returns a view's activations, memory-mapped; computes them where nobody did before."""
    path = folder / f"view_{view}.npy"
    with _locked(folder):
        if not path.exists():
            _compute_view(model, inputs, config, path, view=view, device=device)
    activations: np.ndarray = np.load(path, mmap_mode="r")
    return activations


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lets one process of the machine compute while the others wait for its result."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compute_view(
    model: EmbeddingModel,
    inputs: ImageInputs,
    config: TrialConfig,
    path: Path,
    *,
    view: int,
    device: torch.device,
) -> None:
    """Writes the activations of all images; view 0 is plain, the others are augmented."""
    _LOGGER.info("computing view %d of the frozen trunk for %d images", view, len(inputs))
    temporary = path.with_suffix(".partial")
    written = None
    for start in range(0, len(inputs), config.evaluation.batch_size):
        indices = np.arange(start, min(start + config.evaluation.batch_size, len(inputs)))
        # A stream for the view and block, not for the trial's seed: trials share the cache.
        stream = numpy_stream(0, f"cached view {view}", step=start)
        batch = inputs.augmented(indices, stream) if view else inputs.plain(indices)
        rows = model.frozen_activations(batch.to(device)).half().cpu().numpy()
        if written is None:
            shape = (len(inputs), *rows.shape[1:])
            written = np.lib.format.open_memmap(temporary, mode="w+", dtype=rows.dtype, shape=shape)
        written[indices] = rows
    assert written is not None
    written.flush()
    os.replace(temporary, path)
