"""Evaluates a trained model on a set of images."""

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import Tensor

from dml_core.config.evaluation import EvaluationConfig
from dml_core.data.inputs import ImageInputs, Inputs
from dml_core.data.prepared import ImageSet
from dml_core.evaluation.embed import embed
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.occlusion import occlude
from dml_core.models.building import build_model
from dml_core.models.embedding_model import EmbeddingModel
from dml_core.models.placement import place_model
from dml_core.training.activations import WantedActivations, is_cached
from dml_core.training.checkpoint import Checkpoint, weights_must_fit
from dml_core.training.determinism import choose_device, limited_threads


def load_trained_model(checkpoint: Checkpoint) -> EmbeddingModel:
    """Returns the model of the checkpoint's selected epoch, in evaluation mode."""
    # The checkpoint has every weight, so nothing is downloaded or read from elsewhere.
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
    """Returns every metric of the model on the images, by name.

    Args:
        checkpoint: the trained model and how it was made.
        images: what it is judged on, with the checkpoint's continuous columns.
        evaluation: which metrics; may differ from those in training.
        content_hash: as in `embed_with_checkpoint`.
        on_progress: told what is being done.
    """
    on_progress("embedding and searching")
    plain = embed_with_checkpoint(checkpoint, images, content_hash=content_hash)
    scores = _score(plain, checkpoint, images, evaluation)
    # Occluded images are judged by retrieval alone: clustering them costs more than it says.
    left_out = {"clustering": False, "binary": False, "synthetic_points": 0}
    quick = evaluation.model_copy(update=left_out)
    for size in evaluation.occlusion:
        for place in ("center", "boundary"):
            on_progress(f"occlusion of {size:g} at the {place}")
            change = partial(occlude, size=size, place=place)
            embeddings = embed_with_checkpoint(checkpoint, images, change=change)
            occluded = _score(embeddings, checkpoint, images, quick)
            scores |= {
                f"occluded_{place}_{size:g}_{name}": value
                for name, value in occluded.items()
                if not name.startswith("num_")
            }
    return scores


def embed_with_checkpoint(
    checkpoint: Checkpoint,
    images: ImageSet,
    *,
    content_hash: str = "",
    change: Callable[[Tensor], Tensor] | None = None,
) -> np.ndarray:
    """Returns the (N, D) float32 embeddings of the images by the checkpoint's model.

    Args:
        checkpoint: the trained model.
        images: what is embedded.
        content_hash: of the prepared data that the images are from. With it, what a frozen trunk
            makes of them is kept beside the data and shared by all models with that trunk.
        change: applied to each batch of pixels first, such as an occlusion.
    """
    config = checkpoint.config
    device = choose_device(config.training.device)
    with limited_threads(config.training.cpu_threads):
        model = load_trained_model(checkpoint)
        place_model(model, device=device, channels_last=config.training.channels_last)
        network: Callable[[Tensor], Tensor] = model
        pixels = ImageInputs(images, size_px=config.input_size_px, config=config.augmentation)
        inputs: Inputs = pixels
        if content_hash and change is None and is_cached(model, config):
            network = model.forward_from
            wanted = WantedActivations(
                model, config, pixels, content_hash=content_hash, device=device
            )
            inputs = wanted.load()
        return embed(
            network,
            inputs,
            batch_size=config.evaluation.batch_size,
            device=device,
            workers=config.training.loader_workers,
            use_bfloat16=config.training.precision == "bfloat16",
            change=change,
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
