"""Finds out whether a study's arms give a metric."""

from collections.abc import Mapping, Sequence

from dml_core.config import TrialConfig
from dml_core.config.problems import suggest
from dml_core.studies.metric_names import (
    COST_METRICS,
    GRADIENT_METRICS,
    TABLES,
    TRAIN_METRICS,
    list_metrics,
    match_star,
)

KINDS = ("test", "validation", "train", "cost", "gradient", "table")
_MEASURED = {"cost": ("step_cost", COST_METRICS), "gradient": ("gradients", GRADIENT_METRICS)}


def split_metric(metric: str) -> tuple[str, str]:
    """Returns what stands before a metric's first dot, and the rest."""
    kind, _, name = metric.partition(".")
    return kind, name


def explain_missing(
    metric: str, configs: Mapping[str, TrialConfig], *, measures: Sequence[str]
) -> str:
    """Returns why a metric cannot be had from every arm, as the rest of a sentence; or nothing.

    Args:
        metric: with what stands before it; a star in it stands for numbers.
        configs: the arms that have to give it.
        measures: what the study measures.
    """
    kind, name = split_metric(metric)
    if kind not in KINDS or not name:
        listed = ", ".join(f"{kind}.<name>" for kind in KINDS)
        return f"must be one of {listed}. Got {metric!r}."
    if kind == "test":
        return _explain_score(metric, configs, "test")
    if kind == "validation":
        return _explain_score(metric, configs, "validation")
    if kind == "table":
        return _explain_table(metric, configs)
    if kind == "train":
        return _explain_name(metric, TRAIN_METRICS)
    return _explain_measure(metric, measures)


def _explain_score(metric: str, configs: Mapping[str, TrialConfig], split: str) -> str:
    name = split_metric(metric)[1]
    if name.count("*") > 1:
        return f"must have one star at most. Got {metric!r}."
    for arm, config in configs.items():
        known = list_metrics(config, "test" if split == "test" else "validation")
        if "*" in name:
            is_given = any(match_star(name, each) is not None for each in known)
        else:
            is_given = name in known
        if not is_given:
            return (
                f"must be a metric that every arm computes. Got {metric!r}, which arm {arm!r} does "
                f"not compute on {split}.{suggest(name, known)} There are {', '.join(known)}."
            )
    return ""


def _explain_table(metric: str, configs: Mapping[str, TrialConfig]) -> str:
    for arm, config in configs.items():
        if not config.evaluation.class_distances:
            return (
                f"{metric!r} needs evaluation.class_distances, the number of classes in the "
                f"table, and arm {arm!r} has 0. Put it into fixed."
            )
    return _explain_name(metric, TABLES)


def _explain_measure(metric: str, measures: Sequence[str]) -> str:
    measure, names = _MEASURED[split_metric(metric)[0]]
    if measure not in measures:
        return f"{metric!r} needs measures: [{measure}] in the study."
    return _explain_name(metric, names)


def _explain_name(metric: str, names: Sequence[str]) -> str:
    kind, name = split_metric(metric)
    if name in names:
        return ""
    listed = ", ".join(f"{kind}.{each}" for each in names)
    return f"must be one of {listed}. Got {metric!r}.{suggest(name, names)}"
