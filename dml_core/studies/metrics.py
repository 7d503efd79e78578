"""Names, directions and units of the metrics of a study."""

import re
from dataclasses import dataclass
from typing import Literal

from dml_core.config import TrialConfig
from dml_core.config.image_changes import list_changes
from dml_core.evaluation.operating_points import name_points

Split = Literal["test", "validation"]
LOWER_IS_BETTER = ("mean_label_distance_at_", "fnmr_at_fmr_", "cost.", "train.loss", "_bytes")
"""Parts of the names of metrics for which lower is better."""

TRAIN_METRICS = (
    "loss",
    "active_fraction",
    "positive_distance",
    "negative_distance",
    "positive_similarity",
    "negative_similarity",
    "left_out_pairs",
    "synthetic_fraction",
)
"""Numbers of an epoch's training; all except `loss` only from losses that have them."""
COST_METRICS = ("step_seconds", "memory_mib", "trained_parameters")
SEARCH_INDEXES = ("float32", "int8", "pq", "bits", "hnsw", "ivf")
"""Ways to store and search embeddings, which `dml_core.measures.search_cost` describes."""
SEARCH_NUMBERS = ("recall_at_1", "bytes", "queries_per_second")
SEARCH_METRICS = tuple(f"{kind}_{number}" for kind in SEARCH_INDEXES for number in SEARCH_NUMBERS)
GRADIENT_METRICS = ("positive", "negative")
TABLES = ("hardest_distances",)

REDUCERS = ("first", "last", "mean")
"""Prefixes that reduce a curve to one number."""

_NUMBER = r"(\d+(?:\.\d+)?)"


def list_metrics(config: TrialConfig, split: Split) -> list[str]:
    """Returns the metrics of a split by name, without the counts.

    Validation omits clustering, binarised embeddings, operating points, prefixes and changed
    images, which take longer than an epoch.
    """
    evaluation = config.evaluation
    retrieval = [*(f"recall_at_{k}" for k in evaluation.recall_at), "r_precision", "map_at_r"]
    synthetic: list[str] = []
    if evaluation.synthetic_points:
        synthetic += [f"synthetic_recall_at_{k}" for k in evaluation.recall_at]
    continuous: list[str] = []
    if config.data.continuous_labels:
        continuous += [f"mean_label_distance_at_{k}" for k in evaluation.label_at]
        continuous += [f"ndcg_at_{k}" for k in evaluation.ndcg_at]
    if split == "validation":
        return retrieval + synthetic + continuous
    clustering = ["nmi", "pair_f1"] if evaluation.clustering else []
    binary = [f"binary_{name}" for name in retrieval] if evaluation.binary else []
    matches = name_points(evaluation.match_rates)
    changed = [
        f"{change.prefix}{name}"
        for change in list_changes(evaluation)
        for name in retrieval + continuous
    ]
    cut = [f"dim{n}_{name}" for n in evaluation.truncate_at for name in retrieval + continuous]
    return retrieval + clustering + binary + matches + synthetic + continuous + cut + changed


def split_reducer(metric: str) -> tuple[str, str]:
    """Returns the reducer of a metric (empty if it has none) and the metric itself."""
    first, _, rest = metric.partition(".")
    return (first, rest) if first in REDUCERS else ("", metric)


def has_curve(metric: str) -> bool:
    """Returns whether a training gives a curve of the metric: over epochs, hardness or a star."""
    return metric.split(".")[0] in ("validation", "train", "gradient", "table") or "*" in metric


def match_star(pattern: str, name: str) -> float | None:
    """Returns the number of a name at the star of a pattern, or None.

    Example:
        `ndcg_at_*` and `ndcg_at_50` give 50.
    """
    expression = _NUMBER.join(re.escape(part) for part in pattern.split("*"))
    found = re.fullmatch(expression, name)
    return float(found.group(1)) if found else None


def is_higher_better(metric: str) -> bool:
    """Returns whether a larger value of the metric, with or without its split, is better."""
    return not any(part in metric for part in LOWER_IS_BETTER)


_PLAIN = (
    "mean_label_distance_at_",
    "threshold_at_fmr_",
    "_distance",
    "_similarity",
    "left_out_pairs",
    "train.loss",
)


@dataclass(frozen=True)
class Unit:
    """How a value is displayed: its factor, suffix and digits."""

    factor: float
    name: str
    """Suffix with a leading space; empty for plain numbers."""
    difference_name: str
    """Suffix of a difference: shares differ by points, not by percent."""
    digits: int
    """Digits after the decimal point."""
    is_share: bool = False
    """Whether values lie between 0 and 1."""

    def show(self, value: float) -> str:
        """Returns a value as text, without its unit."""
        return self._format(value, "")

    def show_difference(self, value: float) -> str:
        """Returns a difference as text with its sign, without its unit."""
        return self._format(value, "+")

    def _format(self, value: float, sign: str) -> str:
        scaled = self.factor * value
        text = f"{scaled:{sign}.{self.digits}f}"
        # A claim of less memory must not be supported by a difference of -0.0 MiB.
        is_lost = scaled != 0 and float(text) == 0 and not self.is_share
        return f"{scaled:{sign}.1g}" if is_lost else text


SHARE = Unit(100, " %", " points", 1, is_share=True)
PLAIN = Unit(1, "", "", 4)
RATIO = Unit(100, " %", " %", 1)
"""Unit of a ratio less 1."""


def unit_of(metric: str) -> Unit:
    """Returns the unit of a metric, by its name with or without its prefix."""
    if "cost.step_seconds" in metric:
        return Unit(1000, " ms", " ms", 2)
    if "cost.memory_mib" in metric:
        return Unit(1, " MiB", " MiB", 1)
    if metric.endswith("_bytes"):
        return Unit(1, " B", " B", 0)
    if metric.endswith("_queries_per_second"):
        return Unit(1, " queries/s", " queries/s", 0)
    if "cost.trained_parameters" in metric:
        return Unit(1, "", "", 0)
    if "gradient." in metric or "table." in metric or any(part in metric for part in _PLAIN):
        return PLAIN
    return SHARE
