"""Judges a running trial on the validation classes."""

from dataclasses import dataclass, field

import numpy as np

from dml_core.data.prepared import DevelopmentData
from dml_core.evaluation.class_distances import smallest_class_distances
from dml_core.evaluation.embed import embed, measure_spread
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.training.state import TrialState

TABLE_DECIMALS = 4
"""Tables are looked at, not computed with, and every epoch has one on disk."""


@dataclass(frozen=True)
class Validation:
    """What the validation after an epoch found; nothing in skipped epochs."""

    scores: dict[str, float] = field(default_factory=dict)
    tables: dict[str, list[list[float]]] = field(default_factory=dict)
    spread: float = float("inf")
    """How far the embeddings lie apart, relative to their length."""
    has_collapsed: bool = False
    """Whether the embeddings are all alike, or not even finite."""


def validate(state: TrialState, data: DevelopmentData) -> Validation:
    """Returns the scores and tables of the state's epoch, where it is one to validate after."""
    training = state.config.training
    if state.epoch % training.validate_every and state.epoch != training.epochs:
        return Validation()
    embeddings = _embed(state)
    spread = measure_spread(embeddings)
    # Written so that NaN counts as collapsed.
    if not spread >= training.collapse_below:
        return Validation(spread=spread, has_collapsed=True)
    scores = _score(state, data, embeddings)
    return Validation(scores, _make_tables(state, data, embeddings), spread)


def _embed(state: TrialState) -> np.ndarray:
    config = state.config
    state.model.set_training(False, freeze_batch_norm=True)
    return embed(
        state.network,
        state.validation_inputs,
        batch_size=config.evaluation.batch_size,
        device=state.device,
        workers=state.loader_workers,
        use_bfloat16=config.training.precision == "bfloat16",
    )


def _score(state: TrialState, data: DevelopmentData, embeddings: np.ndarray) -> dict[str, float]:
    config, continuous = state.config, data.validation.continuous
    # Clustering costs more than an epoch of a small model and chooses nothing.
    quick = config.evaluation.model_copy(update={"clustering": False, "binary": False})
    return evaluate_embeddings(
        embeddings,
        data.validation.labels,
        config=quick,
        metric=config.retrieval_metric,
        roles=None,
        continuous=continuous / state.targets.label_scale if continuous.shape[1] else None,
        seed=config.seed,
    )


def _make_tables(
    state: TrialState, data: DevelopmentData, embeddings: np.ndarray
) -> dict[str, list[list[float]]]:
    config = state.config
    if not config.evaluation.class_distances:
        return {}
    distances = smallest_class_distances(
        embeddings,
        data.validation.labels,
        max_classes=config.evaluation.class_distances,
        metric=config.retrieval_metric,
        block_size=config.evaluation.block_size,
    )
    return {"hardest_distances": distances.round(TABLE_DECIMALS).tolist()}
