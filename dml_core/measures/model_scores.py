"""Scores models on a set of images: trained models, winners of a sweep, untrained baselines."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dml_core.config import TrialConfig
from dml_core.config.image_changes import ImageChange, list_changes
from dml_core.config.trial import EvaluationConfig
from dml_core.data.inputs import ALL, ImageInputs, Inputs
from dml_core.data.prepared import ImageSet, open_test
from dml_core.devices import choose_device, runs_in_bfloat16
from dml_core.evaluation.evaluate import embed, evaluate_embeddings
from dml_core.evaluation.spreading import Spread
from dml_core.measures.image_changes import ChangedInputs
from dml_core.measures.results import WinnerFolder, WinnerScores
from dml_core.measures.untrained import PIXELS
from dml_core.models.building import build_model
from dml_core.models.embedding_model import EmbeddingModel, place_model
from dml_core.training.activations import CachedActivations, is_cached
from dml_core.training.checkpoint import Checkpoint, weights_must_fit
from dml_core.training.determinism import limited_threads
from dml_core.training.state import build_trial_model

EmbedImages = Callable[[ImageChange | None], np.ndarray]
"""Returns the (N, D) embeddings of all images, which may have been computed elsewhere."""


def load_trained_model(checkpoint: Checkpoint) -> EmbeddingModel:
    """Returns the model of the checkpoint's selected epoch, in evaluation mode."""
    # The checkpoint has every weight, so pretrained ones are not loaded.
    bare = checkpoint.config.model.model_copy(update={"weights": "none"})
    config = checkpoint.config.model_copy(update={"model": bare})
    model = build_model(config, in_channels=checkpoint.in_channels)
    with weights_must_fit():
        model.load_state_dict(checkpoint.selected_model())
    # A plain network: faster, and an exported one needs no package for its factors.
    model.merge_adapters()
    model.set_training(False, freeze_batch_norm=True)
    return model


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    images: ImageSet,
    *,
    evaluation: EvaluationConfig,
    content_hash: str = "",
    on_progress: Callable[[str], None] = lambda _: None,
    embed_images: EmbedImages | None = None,
    spread: Spread | None = None,
) -> dict[str, float]:
    """Returns every configured metric of the model on the images, by name.

    Args:
        checkpoint: the trained model and its configuration.
        images: the images, with the checkpoint's continuous columns.
        evaluation: metrics to compute; may differ from those in training.
        content_hash: as in `embed_with_checkpoint`.
        on_progress: called with a description of each step.
        embed_images: embeds the images; None does it here, by `embed_with_checkpoint`.
        spread: divides the search; the metrics are the same, bit for bit.
    """
    embedded = embed_images or partial(_embed_here, checkpoint, images, content_hash)
    on_progress("embedding and searching")
    scores = _score(embedded(None), checkpoint, images, evaluation, spread)
    # Changed images are scored by retrieval only; clustering them is too expensive.
    left_out = {"clustering": False, "binary": False, "match_rates": (), "synthetic_points": 0}
    left_out |= {"truncate_at": ()}
    quick = evaluation.model_copy(update=left_out)
    for change in list_changes(evaluation):
        on_progress(str(change))
        changed = _score(embedded(change), checkpoint, images, quick, spread)
        scores |= {
            f"{change.prefix}{name}": value
            for name, value in changed.items()
            if not name.startswith("num_")
        }
    return scores


def _embed_here(
    checkpoint: Checkpoint, images: ImageSet, content_hash: str, change: ImageChange | None
) -> np.ndarray:
    return embed_with_checkpoint(checkpoint, images, content_hash=content_hash, change=change)


class _RowsOf:
    """A range of the inputs."""

    def __init__(self, inputs: Inputs, rows: range) -> None:
        self._inputs, self._rows = inputs, rows

    def __len__(self) -> int:
        return len(self._rows)

    def plain(self, indices: np.ndarray) -> Tensor:
        return self._inputs.plain(indices + self._rows.start)

    def augmented(
        self, indices: np.ndarray, stream: np.random.Generator, part: slice = ALL
    ) -> Tensor:
        return self._inputs.augmented(indices + self._rows.start, stream, part)


def embed_with_checkpoint(
    checkpoint: Checkpoint,
    images: ImageSet,
    *,
    content_hash: str = "",
    change: ImageChange | None = None,
    rows: range | None = None,
) -> np.ndarray:
    """Returns the (N, D) float32 embeddings of the images by the checkpoint's model.

    Args:
        checkpoint: the trained model.
        images: the images to embed.
        content_hash: hash of the prepared data. With it, activations of frozen blocks are cached
            beside the data and shared by all models with these blocks.
        change: applied to the pixels first, such as an occlusion.
        rows: the images to embed; all by default. A range that begins at a multiple of
            evaluation.batch_size has the same bits as in the embeddings of all.
    """
    config = checkpoint.config
    device = choose_device(config.training.device)
    with limited_threads(config.training.cpu_threads):
        model = load_trained_model(checkpoint)
        place_model(model, device=device, channels_last=config.training.channels_last)
        network: Callable[[Tensor], Tensor] = model
        pixels = ImageInputs(images, size_px=config.input_size_px, config=config.augmentation)
        inputs: Inputs = ChangedInputs(pixels, change) if change else pixels
        if content_hash and change is None and is_cached(model, config):
            network = model.forward_from
            cached = CachedActivations(
                model, config, pixels, content_hash=content_hash, device=device
            )
            inputs = cached.load()
        return embed(
            network,
            inputs if rows is None else _RowsOf(inputs, rows),
            batch_size=config.evaluation.batch_size,
            device=device,
            workers=config.training.loader_workers,
            use_bfloat16=runs_in_bfloat16(config.training.precision, device),
        )


def _score(
    embeddings: np.ndarray,
    checkpoint: Checkpoint,
    images: ImageSet,
    evaluation: EvaluationConfig,
    spread: Spread | None,
) -> dict[str, float]:
    has_labels = images.continuous.shape[1] > 0
    return evaluate_embeddings(
        embeddings,
        images.labels,
        config=evaluation,
        metric=checkpoint.config.retrieval_metric,
        roles=images.roles,
        continuous=images.continuous / checkpoint.label_scale if has_labels else None,
        seed=checkpoint.config.seed,
        spread=spread,
    )


def evaluate_winner(
    winner: WinnerFolder,
    *,
    embed_images: EmbedImages | None = None,
    spread: Spread | None = None,
) -> WinnerScores:
    """Returns the test scores of a winner.

    Args:
        winner: its folder.
        embed_images: as in `evaluate_checkpoint`.
        spread: as in `evaluate_checkpoint`.
    """
    checkpoint = winner.load()
    images, info = open_test(checkpoint.config.data)
    if info.content_hash != checkpoint.data_hash:
        raise ValueError(
            f"{winner.name} was trained on other data than {checkpoint.config.data.prepared_path} "
            f"holds now: hash {checkpoint.data_hash} then, {info.content_hash} now. "
            "Run the sweep again."
        )
    # Rounding depends on the number of threads, and the scores must not depend on the machine's.
    with limited_threads(checkpoint.config.training.cpu_threads):
        scores = evaluate_checkpoint(
            checkpoint,
            images,
            evaluation=checkpoint.config.evaluation,
            content_hash=info.content_hash,
            embed_images=embed_images,
            spread=spread,
        )
    return WinnerScores(winner.arm, winner.seed, scores, info.content_hash, info.split_hash)


def evaluate_untrained(
    name: str,
    config: TrialConfig,
    *,
    embed_images: EmbedImages | None = None,
    spread: Spread | None = None,
) -> dict[str, float]:
    """Returns what no training gives on the test images.

    Args:
        name: from `list_untrained`, with its configuration.
        config: see name.
        embed_images: as in `evaluate_checkpoint`.
        spread: as in `evaluate_checkpoint`.
    """
    images, _ = open_test(config.data)
    with limited_threads(config.training.cpu_threads):
        embedded = embed_images(None) if embed_images else embed_untrained(name, images, config)
        return _score_untrained(embedded, images, config, spread)


def embed_untrained(
    name: str, images: ImageSet, config: TrialConfig, *, rows: range | None = None
) -> np.ndarray:
    """Returns the (N, D) pixels or bare features of the images.

    Args:
        name: from `list_untrained`.
        images: the images to embed.
        config: the configuration of that name.
        rows: as in `embed_with_checkpoint`.
    """
    embed_them = _embed_pixels if name == PIXELS else _embed_features
    with limited_threads(config.training.cpu_threads):
        return embed_them(images, config, rows)


def evaluate_raw_pixels(images: ImageSet, config: TrialConfig) -> dict[str, float]:
    """Returns every configured metric of the images' pixels, compared by cosine.

    The mean of each image is subtracted first, so that brightness does not count.
    """
    return _score_untrained(_embed_pixels(images, config), images, config)


def evaluate_untrained_features(images: ImageSet, config: TrialConfig) -> dict[str, float]:
    """Returns every configured metric of the network's pooled features before training.

    With pretrained weights this is their score without training. The randomly initialised
    projection is not used.
    """
    return _score_untrained(_embed_features(images, config), images, config)


def _embed_pixels(images: ImageSet, config: TrialConfig, rows: range | None = None) -> np.ndarray:
    def center(batch: Tensor) -> Tensor:
        pixels = batch.flatten(1).float()
        return pixels - pixels.mean(dim=1, keepdim=True)

    return _embed_by(center, images, config, device=torch.device("cpu"), rows=rows)


def _embed_features(images: ImageSet, config: TrialConfig, rows: range | None = None) -> np.ndarray:
    device = choose_device(config.training.device)
    model = build_trial_model(config, in_channels=images.channels, device=device)
    model.set_training(False, freeze_batch_norm=True)

    def features(batch: Tensor) -> Tensor:
        pooled: Tensor = model.head.pool(model.trunk(model.frozen_activations(batch)))
        return pooled

    return _embed_by(features, images, config, device=device, rows=rows)


def _embed_by(
    network: Callable[[Tensor], Tensor],
    images: ImageSet,
    config: TrialConfig,
    *,
    device: torch.device,
    rows: range | None,
) -> np.ndarray:
    inputs: Inputs = ImageInputs(images, size_px=config.input_size_px, config=config.augmentation)
    return embed(
        network,
        inputs if rows is None else _RowsOf(inputs, rows),
        batch_size=config.evaluation.batch_size,
        device=device,
        workers=config.training.loader_workers,
    ).astype(np.float32)


def _score_untrained(
    embeddings: np.ndarray,
    images: ImageSet,
    config: TrialConfig,
    spread: Spread | None = None,
) -> dict[str, float]:
    has_labels = images.continuous.shape[1] > 0
    return evaluate_embeddings(
        embeddings,
        images.labels,
        config=config.evaluation,
        metric="cosine",
        roles=images.roles,
        continuous=images.continuous if has_labels else None,
        seed=config.seed,
        spread=spread,
    )
