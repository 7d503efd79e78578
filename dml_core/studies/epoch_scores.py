"""Reads a trial's score from its recorded epochs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dml_core.config import TrialConfig

Epoch = Mapping[str, Any]
"""An EpochReport as a mapping: a line of epochs.jsonl."""


def selected_epoch(epochs: Sequence[Epoch], config: TrialConfig) -> Epoch | None:
    """Returns the epoch that a trial is judged by so far: the best one, or the last validated.

    The first of equally good epochs counts, as in training. None before the first validation.
    """
    scored = [epoch for epoch in epochs if _score(epoch, config) is not None]
    if not scored:
        return None
    if config.training.select == "last":
        return scored[-1]
    return max(scored, key=lambda epoch: _score(epoch, config) or 0.0)


def selected_score(epochs: Sequence[Epoch], config: TrialConfig) -> float | None:
    """Returns the selection metric of the selected epoch."""
    chosen = selected_epoch(epochs, config)
    return None if chosen is None else _score(chosen, config)


def _score(epoch: Epoch, config: TrialConfig) -> float | None:
    score = epoch["validation"].get(config.selection_metric)
    return float(score) if score is not None and math.isfinite(score) else None
