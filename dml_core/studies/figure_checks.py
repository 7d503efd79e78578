"""Finds figures that could not be drawn from a study's results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.config.problems import suggest
from dml_core.studies.arms import ResolvedArm
from dml_core.studies.definition import Figure
from dml_core.studies.metric_names import list_metrics


def find_figure_problems(
    figure: Figure, arms: Sequence[ResolvedArm], configs: Mapping[str, TrialConfig]
) -> list[str]:
    """Returns what is wrong with a figure, a sentence each.

    Args:
        figure: the figure.
        arms: the study's arms.
        configs: the configuration of each arm that has a valid one.
    """
    varied = list_varied_keys(arms, configs)
    return [
        *_find_metric_problems(figure, configs),
        *_find_axis_problems(figure, varied),
        *_find_group_problems(figure, varied),
    ]


def list_varied_keys(arms: Sequence[ResolvedArm], configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns the dotted keys that arms set to different values, in the order of the file."""
    keys = list(dict.fromkeys(key for arm in arms for key in arm.layer))
    flat: list[dict[str, Any]] = [to_flat_dict(config) for config in configs.values()]
    # An arm whose configuration is not known yet may hold the other value.
    is_partial = len(configs) < len(arms)
    return [key for key in keys if is_partial or len({repr(f.get(key)) for f in flat}) > 1]


def _find_metric_problems(figure: Figure, configs: Mapping[str, TrialConfig]) -> Iterable[str]:
    split, _, metric = figure.y.partition(".")
    if split not in ("test", "validation"):
        yield f"figure.y must be test.<metric> or validation.<metric>. Got {figure.y!r}."
        return
    for arm, config in configs.items():
        known = list_metrics(config, "test" if split == "test" else "validation")
        if metric not in known:
            yield (
                f"figure.y must be a metric that every arm computes. Got {figure.y!r}, which arm "
                f"{arm!r} does not compute on {split}.{suggest(metric, known)} "
                f"There are {', '.join(known)}."
            )
            return


def _find_axis_problems(figure: Figure, varied: list[str]) -> Iterable[str]:
    if figure.x == "epoch" and figure.kind in ("line", "lines"):
        if not figure.y.startswith("validation."):
            yield (
                "figure.x=epoch needs a validation metric as figure.y, since the test classes are "
                f"looked at once, at the end. Got {figure.y!r}."
            )
    elif figure.x == "arm":
        if figure.kind != "bar":
            yield f"figure.x=arm is for kind: bar. Got kind: {figure.kind}. {_offer(varied)}"
    elif figure.x not in varied:
        yield (
            f"figure.x must be a key that the arms vary. Got {figure.x!r}."
            f"{suggest(figure.x, varied)} {_offer(varied)}"
        )


def _find_group_problems(figure: Figure, varied: list[str]) -> Iterable[str]:
    is_epochs = figure.x == "epoch"
    if not figure.group:
        if figure.kind == "heatmap" or (figure.kind == "lines" and not is_epochs):
            yield f"figure.group is needed by kind: {figure.kind}. {_offer(varied)}"
    elif figure.group not in varied:
        yield (
            f"figure.group must be a key that the arms vary. Got {figure.group!r}."
            f"{suggest(figure.group, varied)} {_offer(varied)}"
        )
    elif figure.group == figure.x:
        yield f"figure.group must differ from figure.x. Got {figure.group!r} for both."


def _offer(varied: list[str]) -> str:
    return f"The arms vary {', '.join(varied) or 'nothing'}."
