"""Finds figures that could not be drawn from a study's results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.config.problems import suggest
from dml_core.studies.arms import ResolvedArm
from dml_core.studies.definition import Study
from dml_core.studies.figures import Figure
from dml_core.studies.metric_checks import explain_missing, split_metric

_AXES = {
    "epoch": ("validation", "train"),
    "seconds": ("validation", "train"),
    "hardness": ("gradient",),
    "*": ("test", "validation"),
}
"""Which metrics a training gives a curve of, by its x."""


def find_figure_problems(
    study: Study, arms: Sequence[ResolvedArm], configs: Mapping[str, TrialConfig]
) -> list[str]:
    """Returns what is wrong with a study's figures, a sentence each.

    Args:
        study: what the file says.
        arms: the study's arms.
        configs: the configuration of each arm that has a valid one.
    """
    varied = list_varied_keys(arms, configs)
    named = {"figure": study.figure}
    named |= {f"figures.{place}": figure for place, figure in enumerate(study.figures)}
    problems = []
    for name, figure in named.items():
        missing = list(_find_metric_problems(name, figure, configs, study.measures))
        problems += missing
        # Which axis fits a metric that does not exist, nobody knows.
        if not missing:
            problems += _find_axis_problems(name, figure, varied)
        problems += _find_group_problems(name, figure, varied)
        if name == "figure" and not missing:
            problems += _find_answer_problems(figure)
    return problems


def list_varied_keys(arms: Sequence[ResolvedArm], configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns the dotted keys that arms set to different values, in the order of the file."""
    keys = list(dict.fromkeys(key for arm in arms for key in arm.layer))
    flat: list[dict[str, Any]] = [to_flat_dict(config) for config in configs.values()]
    # An arm whose configuration is not known yet may hold the other value.
    is_partial = len(configs) < len(arms)
    return [key for key in keys if is_partial or len({repr(f.get(key)) for f in flat}) > 1]


def is_drawn_by_training(figure: Figure) -> bool:
    """Whether each training gives more than one number to the figure: a curve, or a table."""
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
                f"Got {metric!r}.{_say_why(figure.x, kind)}"
            )
        elif ("*" in metric) != (figure.x == "*"):
            yield f"{name}.x={figure.x} and {name}.y={metric!r}: a star in y goes with x: '*'."


def _say_why(x: str, kind: str) -> str:
    if kind == "test" and x in ("epoch", "seconds"):
        return " The test classes are looked at once, at the end."
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
    # Of the other kinds it is told above that they are curves or tables.
    if not is_drawn_by_training(figure) and split_metric(first)[0] in ("validation", "train"):
        yield (
            "figure.y must begin with a metric of test or cost, since the verdicts go by it. "
            f"Got {first!r}. Put it behind one, or into figures."
        )


def _offer(varied: list[str]) -> str:
    return f"The arms vary {', '.join(varied) or 'nothing'}."
