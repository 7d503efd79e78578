"""The names of the numbers that an evaluation gives, told from the configuration alone."""

from typing import Literal

from dml_core.config import TrialConfig

Split = Literal["test", "validation"]
LOWER_IS_BETTER = "mean_label_distance_at_"


def list_metrics(config: TrialConfig, split: Split) -> list[str]:
    """Returns the metrics of a split by name, without the counts.

    Validation leaves out what costs more than an epoch: clustering, bits and occlusion.
    """
    evaluation = config.evaluation
    retrieval = [*(f"recall_at_{k}" for k in evaluation.recall_at), "r_precision", "map_at_r"]
    continuous: list[str] = []
    if config.data.continuous_labels:
        continuous += [f"{LOWER_IS_BETTER}{k}" for k in evaluation.label_at]
        continuous += [f"ndcg_at_{k}" for k in evaluation.ndcg_at]
    if split == "validation":
        return retrieval + continuous
    clustering = ["nmi", "pair_f1"] if evaluation.clustering else []
    binary = [f"binary_{name}" for name in retrieval] if evaluation.binary else []
    occluded = [
        f"occluded_{place}_{size:g}_{name}"
        for size in evaluation.occlusion
        for place in ("center", "boundary")
        for name in retrieval + continuous
    ]
    return retrieval + clustering + binary + continuous + occluded


def is_higher_better(metric: str) -> bool:
    """Whether a larger value of the metric, with or without its split, is a better one."""
    return LOWER_IS_BETTER not in metric
