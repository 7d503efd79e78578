"""Cached activations: outputs of the frozen blocks of a trunk, shared by all trials."""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dml_core.config import TrialConfig
from dml_core.data.atomic_folder import folder_lock
from dml_core.data.inputs import ALL, ImageInputs, Inputs
from dml_core.data.prepared import DevelopmentData
from dml_core.devices import describe_device
from dml_core.models.embedding_model import EmbeddingModel
from dml_core.own_code import hash_sources, is_own
from dml_core.seeding import numpy_stream
from dml_core.training.activation_store import Rows, StoredSet, store_root
from dml_core.trials.key import (
    hash_input_code,
    read_libraries,
    say_libraries,
)

_FORMAT = 2
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialInputs:
    """The training and validation inputs of a trial."""

    train: Inputs
    validation: Inputs
    are_activations: bool


class ActivationInputs:
    """Inputs from cached activations: float16 memory maps of one or more views, read as float32."""

    def __init__(self, views: list[np.ndarray]) -> None:
        self.views = views

    def __len__(self) -> int:
        return len(self.views[0])

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        """Returns each image of a shard in a view drawn at random."""
        if len(self.views) == 1:
            return self.plain(indices[part])
        chosen = stream.integers(len(self.views), size=len(indices))[part]
        rows = np.stack([self.views[v][i] for v, i in zip(chosen, indices[part], strict=True)])
        return _upcast(rows)

    def plain(self, indices: np.ndarray) -> Tensor:
        """Returns each image in the view without augmentation."""
        return _upcast(self.views[0][indices])


def _upcast(rows: np.ndarray) -> Tensor:
    # torch converts vectorised; NumPy's scalar loop took a fifth of a trial that trains the head.
    return torch.from_numpy(rows).float()


def make_inputs(
    model: EmbeddingModel, data: DevelopmentData, config: TrialConfig, *, device: torch.device
) -> TrialInputs:
    """Returns pixel inputs, or cached activations if blocks of the trunk are frozen."""
    if not is_cached(model, config):
        train, validation = _pixels(data, config)
        return TrialInputs(train, validation, are_activations=False)
    cached_train, cached_validation = make_cached_activations(model, data, config, device=device)
    return TrialInputs(cached_train.load(), cached_validation.load(), are_activations=True)


def is_cached(model: EmbeddingModel, config: TrialConfig) -> bool:
    """Returns whether the trunk has frozen blocks whose activations are cached."""
    return config.trunk.cache and len(model.frozen) > 0


def make_cached_activations(
    model: EmbeddingModel, data: DevelopmentData, config: TrialConfig, *, device: torch.device
) -> tuple["CachedActivations", "CachedActivations"]:
    """Returns the cached activations of a trial's training and validation images."""
    train, validation = _pixels(data, config)
    of_images = partial(
        CachedActivations, model, config, content_hash=data.info.content_hash, device=device
    )
    return of_images(train, num_views=config.trunk.cache_views), of_images(validation)


def _pixels(data: DevelopmentData, config: TrialConfig) -> tuple[ImageInputs, ImageInputs]:
    size_px, augmentation = config.input_size_px, config.augmentation
    return (
        ImageInputs(data.train, size_px=size_px, config=augmentation),
        ImageInputs(data.validation, size_px=size_px, config=augmentation),
    )


class CachedActivations:
    """Outputs of a model's frozen blocks for a set of images, on disk or still to be computed."""

    def __init__(
        self,
        model: EmbeddingModel,
        config: TrialConfig,
        inputs: ImageInputs,
        *,
        content_hash: str,
        device: torch.device,
        num_views: int = 1,
    ) -> None:
        """Derives the name of the activations from all that decides their values.

        Args:
            model: the model with the frozen blocks.
            config: configuration of the trial.
            inputs: the images.
            content_hash: hash of the prepared data.
            device: where the model is.
            num_views: views per image; the first is plain, the others are augmented.
        """
        self.num_views = num_views
        self.facts = _describe(model, config, content_hash, device)
        self.name = f"{config.data.folder_name}-{_hash(self.facts)}-{_set_key(inputs.images.paths)}"
        self.stored = StoredSet(store_root(config.data) / self.name)
        self._model, self._config, self._inputs, self._device = model, config, inputs, device

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def chunk_size(self) -> int:
        """Images per forward pass; views are computed in whole chunks."""
        return self._config.evaluation.batch_size

    def load(self) -> ActivationInputs:
        """Returns all views; computes those that are not on disk."""
        return ActivationInputs([self._load_view(view) for view in range(self.num_views)])

    def compute(self, view: int, start: int, stop: int) -> Iterator[Rows]:
        """Yields the activations of a range of images chunk by chunk; start begins a chunk."""
        assert start % self.chunk_size == 0
        for first in range(start, stop, self.chunk_size):
            indices = np.arange(first, min(first + self.chunk_size, stop))
            # The stream depends on the view and chunk, not on the trial's seed: trials share the
            # files, and every process must compute the same bits.
            stream = numpy_stream(0, f"cached view {view}", step=first)
            batch = self._inputs.augmented(indices, stream) if view else self._inputs.plain(indices)
            rows = self._model.frozen_activations(batch.to(self._device))
            yield first, rows.half().cpu().numpy()

    def _load_view(self, view: int) -> np.ndarray:
        found = self.stored.open_view(view)
        if found is not None:
            return found
        # One process of the machine computes; the others wait for its result.
        with folder_lock(self.stored.folder):
            if not self.stored.has_view(view):
                _LOGGER.info("computing cached view %d of %d images", view, len(self))
                parts = self.compute(view, 0, len(self))
                self.stored.write_view(view, parts, num_images=len(self), facts=self.facts)
        found = self.stored.open_view(view)
        assert found is not None
        return found


def _describe(
    model: EmbeddingModel, config: TrialConfig, content_hash: str, device: torch.device
) -> dict[str, Any]:
    """Returns all that the activations depend on, except the set of images."""
    return {
        "format": _FORMAT,
        "data": content_hash,
        "network": model.frozen_fingerprint(),
        "size": config.input_size_px,
        "augmentation": config.augmentation.model_dump(mode="json"),
        "code": hash_input_code() + hash_sources(filter(is_own, [config.model.backbone])),
        "libraries": say_libraries(read_libraries()),
        "device": describe_device(device),
    }


def _hash(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


def _set_key(paths: list[str]) -> str:
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()[:12]
