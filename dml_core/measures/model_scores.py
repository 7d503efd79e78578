"""Scores models on a set of images: trained models, winners of a sweep, untrained baselines."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dml_core.config import TrialConfig
from dml_core.config.image_changes import ImageChange, list_changes
from dml_core.config.trial import EvaluationConfig
from dml_core.data.inputs import ImageInputs, Inputs
from dml_core.data.parallel import WorkerDied, map_in_order
from dml_core.data.prepared import ImageSet, open_test
from dml_core.evaluation.evaluate import embed, evaluate_embeddings
from dml_core.measures.image_changes import ChangedInputs
from dml_core.models.building import build_model
from dml_core.models.embedding_model import EmbeddingModel, place_model
from dml_core.process_memory import prepare_memory
from dml_core.training.activations import CachedActivations, is_cached
from dml_core.training.checkpoint import Checkpoint, load_checkpoint, weights_must_fit
from dml_core.training.determinism import choose_device, limited_threads
from dml_core.training.state import build_trial_model


def load_trained_model(checkpoint: Checkpoint) -> EmbeddingModel:
    """Returns the model of the checkpoint's selected epoch, in evaluation mode."""
    # The checkpoint has every weight, so pretrained ones are not loaded.
    bare = checkpoint.config.model.model_copy(update={"weights": "none"})
    config = checkpoint.config.model_copy(update={"model": bare})
    model = build_model(config, in_channels=checkpoint.in_channels)
    with weights_must_fit():
        model.load_state_dict(checkpoint.selected_model())
    model.set_training(False, freeze_batch_norm=True)
    return model


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    images: ImageSet,
    *,
    evaluation: EvaluationConfig,
    content_hash: str = "",
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Returns every configured metric of the model on the images, by name.

    Args:
        checkpoint: the trained model and its configuration.
        images: the images, with the checkpoint's continuous columns.
        evaluation: metrics to compute; may differ from those in training.
        content_hash: as in `embed_with_checkpoint`.
        on_progress: called with a description of each step.
    """
    on_progress("embedding and searching")
    plain = embed_with_checkpoint(checkpoint, images, content_hash=content_hash)
    scores = _score(plain, checkpoint, images, evaluation)
    # Changed images are scored by retrieval only; clustering them is too expensive.
    left_out = {"clustering": False, "binary": False, "match_rates": (), "synthetic_points": 0}
    quick = evaluation.model_copy(update=left_out)
    for change in list_changes(evaluation):
        on_progress(str(change))
        embeddings = embed_with_checkpoint(checkpoint, images, change=change)
        changed = _score(embeddings, checkpoint, images, quick)
        scores |= {
            f"{change.prefix}{name}": value
            for name, value in changed.items()
            if not name.startswith("num_")
        }
    return scores


def embed_with_checkpoint(
    checkpoint: Checkpoint,
    images: ImageSet,
    *,
    content_hash: str = "",
    change: ImageChange | None = None,
) -> np.ndarray:
    """Returns the (N, D) float32 embeddings of the images by the checkpoint's model.

    Args:
        checkpoint: the trained model.
        images: the images to embed.
        content_hash: hash of the prepared data. With it, activations of frozen blocks are cached
            beside the data and shared by all models with these blocks.
        change: applied to the pixels first, such as an occlusion.
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
            inputs,
            batch_size=config.evaluation.batch_size,
            device=device,
            workers=config.training.loader_workers,
            use_bfloat16=config.training.precision == "bfloat16",
        )


def _score(
    embeddings: np.ndarray, checkpoint: Checkpoint, images: ImageSet, evaluation: EvaluationConfig
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
    )


LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class WinnerScores:
    """The test scores of one arm's winner, trained with one seed."""

    arm: str
    seed: int
    scores: dict[str, float]
    data_hash: str
    split_hash: str


def evaluate_winners(
    folder: Path, *, workers: int, on_progress: Callable[[int, int], None] = lambda *_: None
) -> Iterator[WinnerScores]:
    """Yields the test scores of each `<arm>-seed<k>` folder, by name.

    Args:
        folder: the winners of a sweep, each with its checkpoint.
        workers: number of processes.
        on_progress: called with (done, total).
    """
    folders = sorted(path for path in folder.iterdir() if (path / "checkpoint.pt").exists())
    for done, result in enumerate(_evaluate_all(folders, workers), start=1):
        on_progress(done, len(folders))
        yield result


def _evaluate_all(folders: Sequence[Path], workers: int) -> Iterator[WinnerScores]:
    done = 0
    try:
        for result in map_in_order(_evaluate_one, folders, workers=workers, chunk_size=1):
            yield result
            done += 1
    except WorkerDied:
        LOGGER.warning(
            "one of %d evaluation processes was killed, most likely for lack of memory. The "
            "remaining %d of %d winners are evaluated one at a time.",
            workers, len(folders) - done, len(folders),
        )  # fmt: skip
        yield from map(_evaluate_one, folders[done:])


def _evaluate_one(folder: Path) -> WinnerScores:
    prepare_memory()
    checkpoint = load_checkpoint(folder / "checkpoint.pt")
    images, info = open_test(checkpoint.config.data)
    if info.content_hash != checkpoint.data_hash:
        raise ValueError(
            f"{folder.name} was trained on other data than {checkpoint.config.data.prepared_path} "
            f"holds now: hash {checkpoint.data_hash} then, {info.content_hash} now. "
            "Run the sweep again."
        )
    arm, _, seed = folder.name.rpartition("-seed")
    scores = evaluate_checkpoint(
        checkpoint,
        images,
        evaluation=checkpoint.config.evaluation,
        content_hash=info.content_hash,
    )
    return WinnerScores(arm, int(seed), scores, info.content_hash, info.split_hash)


BARE_FEATURES = "bare features"
PIXELS = "pixels"


def evaluate_untrained(
    configs: Iterable[TrialConfig], images: ImageSet
) -> dict[str, dict[str, float]]:
    """Returns what no training gives on the test images, by name and metric.

    `bare features` are those of pretrained networks, one entry for each network; where no
    configuration has pretrained weights, `pixels` are compared instead. Clustering and changed
    images are left out, since they would take longer than the rest.
    """
    networks: dict[tuple[str, ...], TrialConfig] = {}
    for config in configs:
        kind = (config.model.backbone, config.model.weights, config.model.pooling)
        networks.setdefault((*map(str, kind), str(config.input_size_px)), config)
    pretrained = [each for each in networks.values() if each.model.weights != "none"]
    found = {}
    for config in pretrained or list(networks.values())[:1]:
        quick = config.evaluation.model_copy(update={"clustering": False})
        config = config.model_copy(update={"evaluation": quick})
        if not pretrained:
            found[PIXELS] = evaluate_raw_pixels(images, config)
            continue
        name = BARE_FEATURES
        if len(pretrained) > 1:
            name += f" of {config.model.backbone}, {config.input_size_px} px"
        found[name] = evaluate_untrained_features(images, config)
    return found


def evaluate_raw_pixels(images: ImageSet, config: TrialConfig) -> dict[str, float]:
    """Returns every configured metric of the images' pixels, compared by cosine.

    The mean of each image is subtracted first, so that brightness does not count.
    """

    def center(batch: Tensor) -> Tensor:
        pixels = batch.flatten(1).float()
        return pixels - pixels.mean(dim=1, keepdim=True)

    return _score_network(center, images, config, device=torch.device("cpu"))


def evaluate_untrained_features(images: ImageSet, config: TrialConfig) -> dict[str, float]:
    """Returns every configured metric of the network's pooled features before training.

    With pretrained weights this is their score without training. The randomly initialised
    projection is not used.
    """
    device = choose_device(config.training.device)
    model = build_trial_model(config, in_channels=images.channels, device=device)
    model.set_training(False, freeze_batch_norm=True)

    def features(batch: Tensor) -> Tensor:
        pooled: Tensor = model.head.pool(model.trunk(model.frozen_activations(batch)))
        return pooled

    return _score_network(features, images, config, device=device)


def _score_network(
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
