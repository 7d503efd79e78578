"""Finds figures and claims that the study's metrics cannot draw or decide."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.config.problems import suggest
from dml_core.studies.definition import Figure, Side, Study, Trend
from dml_core.studies.metrics import (
    COST_METRICS,
    GRADIENT_METRICS,
    REDUCERS,
    SEARCH_METRICS,
    TABLES,
    TRAIN_METRICS,
    has_curve,
    list_metrics,
    match_star,
    split_reducer,
)
from dml_core.studies.resolved import ResolvedArm, ResolvedStudy, expand_arms

KINDS = ("test", "validation", "train", "cost", "gradient", "search", "table")
_MEASURED = {
    "cost": ("step_cost", COST_METRICS),
    "gradient": ("gradients", GRADIENT_METRICS),
    "search": ("search_cost", SEARCH_METRICS),
}


def split_metric(metric: str) -> tuple[str, str]:
    """Returns the prefix of a metric before its first dot, and the rest."""
    kind, _, name = metric.partition(".")
    return kind, name


def explain_missing(
    metric: str, configs: Mapping[str, TrialConfig], *, measures: Sequence[str]
) -> str:
    """Returns why not every arm has a metric, as the end of a sentence; empty if all have it.

    Args:
        metric: the metric with its prefix; a star in it matches numbers.
        configs: configurations of the arms that must have it.
        measures: measures of the study.
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
        return f"must have at most one star. Got {metric!r}."
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


_AXES = {
    "epoch": ("validation", "train"),
    "seconds": ("validation", "train"),
    "hardness": ("gradient",),
    "*": ("test", "validation"),
}
"""Prefixes of metrics that a training gives a curve of, by x."""


def find_figure_problems(
    study: Study, arms: Sequence[ResolvedArm], configs: Mapping[str, TrialConfig]
) -> list[str]:
    """Returns the problems of a study's figures, one sentence each.

    Args:
        study: the content of the file.
        arms: the arms of the study.
        configs: configurations of the arms that have a valid one.
    """
    varied = list_varied_keys(arms, configs)
    named = {"figure": study.figure}
    named |= {f"figures.{place}": figure for place, figure in enumerate(study.figures)}
    problems = []
    for name, figure in named.items():
        missing = list(_find_metric_problems(name, figure, configs, study.measures))
        problems += missing
        # A metric that does not exist has no axis to check.
        if not missing:
            problems += _find_axis_problems(name, figure, varied)
        problems += _find_group_problems(name, figure, varied)
        if name == "figure" and not missing:
            problems += _find_answer_problems(figure)
    return problems


def list_varied_keys(arms: Sequence[ResolvedArm], configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns the dotted keys with different values in the arms, in the order of the file."""
    keys = list(dict.fromkeys(key for arm in arms for key in arm.layer))
    flat: list[dict[str, Any]] = [to_flat_dict(config) for config in configs.values()]
    # An arm without a valid configuration may have another value.
    is_partial = len(configs) < len(arms)
    return [key for key in keys if is_partial or len({repr(f.get(key)) for f in flat}) > 1]


def is_drawn_by_training(figure: Figure) -> bool:
    """Returns whether each training gives the figure a curve or a table, not one number."""
    return figure.is_curves or figure.kind == "matrices"


def _find_metric_problems(
    name: str, figure: Figure, configs: Mapping[str, TrialConfig], measures: Sequence[str]
) -> Iterable[str]:
    for metric in figure.y:
        if missing := explain_missing(metric, configs, measures=measures):
            yield f"{name}.y {missing}"


def _find_axis_problems(name: str, figure: Figure, varied: list[str]) -> Iterable[str]:
    if figure.kind == "matrices":
        yield from _find_matrix_problems(name, figure)
    elif figure.is_curves:
        yield from _find_curve_problems(name, figure)
    else:
        yield from _find_scalar_problems(name, figure)
        yield from _find_key_problems(name, figure, varied)


def _find_matrix_problems(name: str, figure: Figure) -> Iterable[str]:
    for metric in figure.y:
        if split_metric(metric)[0] != "table":
            yield f"{name}.y must be table.<name> for kind: matrices. Got {metric!r}."
    if figure.x != "arm":
        yield f"{name}.x must be left out for kind: matrices. Got {figure.x!r}."


def _find_curve_problems(name: str, figure: Figure) -> Iterable[str]:
    if figure.kind not in ("line", "lines"):
        yield f"{name}.x={figure.x} is for kind: line or lines. Got kind: {figure.kind}."
    for metric in figure.y:
        kind, allowed = split_metric(metric)[0], _AXES[figure.x]
        if kind not in allowed:
            yield (
                f"{name}.x={figure.x} needs a metric of {' or '.join(allowed)} as {name}.y. "
                f"Got {metric!r}.{_explain_axis(figure.x, kind)}"
            )
        elif ("*" in metric) != (figure.x == "*"):
            yield f"{name}.x={figure.x} and {name}.y={metric!r}: a star in y goes with x: '*'."


def _explain_axis(x: str, kind: str) -> str:
    if kind == "test" and x in ("epoch", "seconds"):
        return " The test classes are evaluated once, at the end."
    return ""


def _find_scalar_problems(name: str, figure: Figure) -> Iterable[str]:
    for metric in figure.y:
        kind = split_metric(metric)[0]
        if "*" in metric:
            yield f"{name}.y={metric!r} has a star, which needs {name}.x: '*'."
        elif kind == "gradient":
            yield f"{name}.y={metric!r} is a curve, which needs {name}.x: hardness."
        elif kind == "table":
            yield f"{name}.y={metric!r} is a table, which needs kind: matrices."


def _find_key_problems(name: str, figure: Figure, varied: list[str]) -> Iterable[str]:
    if figure.x == "arm":
        if figure.kind != "bar":
            yield f"{name}.x=arm is for kind: bar. Got kind: {figure.kind}. {_offer(varied)}"
    elif figure.x not in varied:
        yield (
            f"{name}.x must be a key that the arms vary. Got {figure.x!r}."
            f"{suggest(figure.x, varied)} {_offer(varied)}"
        )


def _find_group_problems(name: str, figure: Figure, varied: list[str]) -> Iterable[str]:
    if not figure.group:
        if figure.kind == "heatmap" or (figure.kind == "lines" and not figure.is_curves):
            yield f"{name}.group is needed by kind: {figure.kind}. {_offer(varied)}"
    elif figure.kind == "matrices":
        yield f"{name}.group must be left out for kind: matrices. Got {figure.group!r}."
    elif figure.group not in varied:
        yield (
            f"{name}.group must be a key that the arms vary. Got {figure.group!r}."
            f"{suggest(figure.group, varied)} {_offer(varied)}"
        )
    elif figure.group == figure.x:
        yield f"{name}.group must differ from {name}.x. Got {figure.group!r} for both."


def _find_answer_problems(figure: Figure) -> Iterable[str]:
    first = figure.y[0]
    # For other prefixes the checks above report that they are curves or tables.
    if not is_drawn_by_training(figure) and split_metric(first)[0] in ("validation", "train"):
        yield (
            "figure.y must begin with a metric of test or cost, since it decides the verdicts. "
            f"Got {first!r}. Put it after one, or into figures."
        )


def _offer(varied: list[str]) -> str:
    return f"The arms vary {', '.join(varied) or 'nothing'}."


def find_claim_problems(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns the problems of a study's claims, one sentence each.

    Claims may name arms that a profile omits; such a claim cannot be decided.

    Args:
        study: a study that may be invalid.
        configs: configurations of the arms that have a valid one.
    """
    problems: list[str] = []
    for place, claim in enumerate(study.definition.claims):
        for name in ("left", "right", "trend"):
            part: Side | Trend | None = getattr(claim, name)
            if part is None:
                continue
            key = f"claims.{place}.{name}"
            problems += _find_arm_problems(key, study, part.arms)
            kept = {a: c for a, c in configs.items() if not part.arms or a in part.arms}
            problems += _find_claim_metric_problems(key, study, part.metric, kept)
            if isinstance(part, Trend):
                problems += _find_trend_problems(f"{key}.key", study, part, kept)
    return problems


def is_number(value: object) -> bool:
    """Returns whether a value of a configuration is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _find_arm_problems(key: str, study: ResolvedStudy, arms: Sequence[str]) -> Iterable[str]:
    names = [arm.name for arm in expand_arms(study.definition)]
    for arm in arms:
        if arm not in names:
            yield (
                f"{key}.arms must name arms. Got {arm!r}.{suggest(arm, names)} "
                f"The arms: {', '.join(names)}."
            )


def _find_claim_metric_problems(
    key: str, study: ResolvedStudy, metric: str, configs: Mapping[str, TrialConfig]
) -> Iterable[str]:
    if not metric:
        return
    reducer, name = split_reducer(metric)
    if missing := explain_missing(name, configs, measures=study.definition.measures):
        yield f"{key}.metric {missing}"
    elif reducer and not has_curve(name):
        yield f"{key}.metric is one number already. Got {metric!r}. Leave out {reducer!r}."
    elif not reducer and ("*" in name or name.startswith(("gradient.", "table."))):
        listed = ", ".join(f"{each}.{name}" for each in REDUCERS)
        yield f"{key}.metric must be one number. Got {metric!r}. Take one of {listed}."


def _find_trend_problems(
    key: str, study: ResolvedStudy, trend: Trend, configs: Mapping[str, TrialConfig]
) -> Iterable[str]:
    values = {arm: to_flat_dict(config).get(trend.key) for arm, config in configs.items()}
    wrong = {arm: value for arm, value in values.items() if not is_number(value)}
    if wrong:
        varied = list(dict.fromkeys(each for arm in study.arms for each in arm.layer))
        arm, value = next(iter(wrong.items()))
        yield (
            f"{key} must have a number in every arm of the trend. Got {trend.key!r}, which "
            f"is {value!r} in arm {arm!r}.{suggest(trend.key, varied)} List the arms that have "
            "one under trend.arms."
        )
        return
    # An arm that is missing here may have another value.
    names = {arm.name for arm in expand_arms(study.definition)}
    is_whole = set(values) == (set(trend.arms) or names)
    if is_whole and len(set(values.values())) < 2:
        yield f"{key} must be a key that the arms of the trend vary. Got {trend.key!r}."
