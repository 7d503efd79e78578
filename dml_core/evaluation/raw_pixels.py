"""Judges raw pixels as embeddings: the score that any trained model must beat."""

import numpy as np

from dml_core.config import TrialConfig
from dml_core.data.inputs import ImageInputs, plain_batches
from dml_core.data.prepared import ImageSet
from dml_core.evaluation.evaluate import evaluate_embeddings


def evaluate_raw_pixels(images: ImageSet, config: TrialConfig) -> dict[str, float]:
    """Returns every configured metric of the evaluation inputs' pixels, compared by cosine.

    Each image's mean is taken away first, so that brightness does not count.
    """
    inputs = ImageInputs(images, size_px=config.input_size_px, config=config.augmentation)
    batches = plain_batches(inputs, batch_size=config.evaluation.batch_size)
    pixels = np.concatenate([batch.flatten(1).numpy() for _, batch in batches]).astype(np.float32)
    pixels -= pixels.mean(axis=1, keepdims=True)
    has_labels = images.continuous.shape[1] > 0
    return evaluate_embeddings(
        pixels,
        images.labels,
        config=config.evaluation,
        metric="cosine",
        roles=images.roles,
        continuous=images.continuous if has_labels else None,
        seed=config.seed,
    )
