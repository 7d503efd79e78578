"""Tells whether two configurations make the same numbers on the same data."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import flatten

# Where a trial runs and where its files lie, and what only the test is judged by: no number of a
# training or its validation depends on these.
_FREE_KEYS = frozenset(
    {
        "training.device",
        "training.loader_workers",
        "data.prepared_root",
        "data.raw",
        "evaluation.clustering",
        "evaluation.kmeans_iterations",
        "evaluation.kmeans_restarts",
        "evaluation.binary",
        "evaluation.occlusion",
    }
)


def have_equal_numbers(one: TrialConfig, other: TrialConfig) -> bool:
    """Returns whether two configurations make the same numbers on the same data."""
    return one == other or digest_numbers(one) == digest_numbers(other)


def digest_numbers(config: TrialConfig) -> str:
    """Returns a digest that is equal for configurations that make the same numbers."""
    return digest_stored_numbers(config.model_dump(mode="json"))


def digest_stored_numbers(config: Mapping[str, Any]) -> str:
    """Returns `digest_numbers` of a configuration as a spec.json holds it.

    It is not read into a TrialConfig, which would take longer than all the rest.
    """
    flat = flatten(config)
    # A key that is not there and one without a value are the same.
    kept = {k: v for k, v in flat.items() if k not in _FREE_KEYS and v is not None}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
