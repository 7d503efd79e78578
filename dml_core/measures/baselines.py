"""Judges what needs no training: the scores that a trained model must beat."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dml_core.config import TrialConfig
from dml_core.data.inputs import ImageInputs
from dml_core.data.prepared import ImageSet
from dml_core.evaluation.embed import embed
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.models.building import build_model
from dml_core.models.embedding_model import place_model
from dml_core.training.determinism import choose_device, seeded_torch


def evaluate_raw_pixels(images: ImageSet, config: TrialConfig) -> dict[str, float]:
    """Returns every configured metric of the evaluation inputs' pixels, compared by cosine.

    Each image's mean is taken away first, so that brightness does not count.
    """

    def center(batch: Tensor) -> Tensor:
        pixels = batch.flatten(1).float()
        return pixels - pixels.mean(dim=1, keepdim=True)

    return _evaluate(center, images, config, device=torch.device("cpu"))


def evaluate_untrained_features(images: ImageSet, config: TrialConfig) -> dict[str, float]:
    """Returns every configured metric of the network's pooled features before any training.

    With pretrained weights this is what they know by themselves; the projection, which starts
    at random, is left out.
    """
    device = choose_device(config.training.device)
    with seeded_torch(config.seed, "model"):
        model = build_model(config, in_channels=images.channels)
    place_model(model, device=device, channels_last=config.training.channels_last)
    model.set_training(False, freeze_batch_norm=True)

    def features(batch: Tensor) -> Tensor:
        pooled: Tensor = model.head.pool(model.trunk(model.frozen_activations(batch)))
        return pooled

    return _evaluate(features, images, config, device=device)


def _evaluate(
    network: Callable[[Tensor], Tensor],
    images: ImageSet,
    config: TrialConfig,
    *,
    device: torch.device,
) -> dict[str, float]:
    inputs = ImageInputs(images, size_px=config.input_size_px, config=config.augmentation)
    embeddings = embed(
        network,
        inputs,
        batch_size=config.evaluation.batch_size,
        device=device,
        workers=config.training.loader_workers,
    )
    has_labels = images.continuous.shape[1] > 0
    return evaluate_embeddings(
        embeddings.astype(np.float32),
        images.labels,
        config=config.evaluation,
        metric="cosine",
        roles=images.roles,
        continuous=images.continuous if has_labels else None,
        seed=config.seed,
    )
