"""A tiny dataset and trials that finish in a second, for tests of training."""

from pathlib import Path

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import DevelopmentData, open_development
from dml_core.data.sources.registry import list_images

TINY = {
    "data.max_classes": 16,
    "data.images_per_class": 8,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 4,
    "model.embedding_dim": 8,
    "training.epochs": 3,
    "evaluation.clustering": False,
    "evaluation.ndcg_at": [5, 10],
}


def tiny_config(root: Path, **knobs: object) -> TrialConfig:
    """Returns a tiny trial; keyword names have __ for the dot."""
    changes = {key.replace("__", "."): value for key, value in knobs.items()}
    return resolve_trial_config({**TINY, "data.prepared_root": str(root)}, changes)


def prepare_tiny(root: Path, **knobs: object) -> DevelopmentData:
    """Prepares the tiny dataset below a folder and opens it."""
    config = tiny_config(root, **knobs)
    prepare_dataset(list_images(config.data), config.data, workers=1)
    return open_development(config.data)
