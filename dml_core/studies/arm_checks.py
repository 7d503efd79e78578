"""Finds arms that cannot be trained, at the corners of their search space."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dml_core.config import ConfigError, TrialConfig
from dml_core.config.loading import flatten, to_flat_dict
from dml_core.config.training import ClassBalancedSamplerConfig, OwnSamplerConfig
from dml_core.samplers import build_sampler
from dml_core.samplers.class_balanced import compute_batch_shape
from dml_core.studies.dimensions import Dimension
from dml_core.studies.resolved import ResolvedArm, ResolvedStudy


@dataclass(frozen=True)
class TrainingSize:
    """Size of a training set."""

    num_classes: int
    num_images: int


@dataclass(frozen=True)
class Finding:
    """A problem, with the arm and the nuisance values that have it."""

    arm: str
    values: tuple[tuple[str, Any], ...]
    text: str


def list_corners(space: Mapping[str, Dimension]) -> list[dict[str, Any]]:
    """Returns nuisance values that expose the problems of a space, without all combinations.

    These are all first values, all last values, and each value of each key with the other keys at
    their first value.
    """
    first = {key: dimension.corners()[0] for key, dimension in space.items()}
    last = {key: dimension.corners()[-1] for key, dimension in space.items()}
    single = [
        {**first, key: value}
        for key, dimension in space.items()
        for value in dimension.corners()[1:]
    ]
    corners = [first, last, *single]
    return [corner for place, corner in enumerate(corners) if corner not in corners[:place]]


def find_arm_problems(study: ResolvedStudy, size: TrainingSize | None = None) -> list[str]:
    """Returns the problems of the arms' configurations, one sentence each.

    Args:
        study: a study that may be invalid.
        size: size of the training set, if known; then impossible batches are found too.
    """
    findings = [
        Finding(arm.name, tuple(corner.items()), text)
        for arm in study.arms
        for corner in list_corners(arm.space)
        for text in _check_corner(study, arm, corner, size)
    ]
    return _merge_findings(study, findings)


def resolve_arms(study: ResolvedStudy) -> dict[str, TrialConfig]:
    """Returns the configuration of each arm that has a valid one."""
    configs = {}
    for arm in study.arms:
        try:
            configs[arm.name] = study.arm_config(arm.name)
        except ConfigError:
            continue
    return configs


def find_batch_problems(config: TrialConfig, size: TrainingSize) -> list[str]:
    """Returns why batches cannot be drawn from a training set of this size, if so."""
    if isinstance(config.sampler, ClassBalancedSamplerConfig):
        # The classes of a quantised label are known only during training.
        if config.data.quantize_bins:
            return []
        return _find_balance_problems(config.sampler, size.num_classes)
    if isinstance(config.sampler, OwnSamplerConfig):
        # Own code runs in `check_own_code` and in a trial, not whenever a study is read.
        return []
    # The other samplers do not read the labels before they draw.
    labels, continuous = np.zeros(size.num_images, dtype=np.int64), np.zeros((size.num_images, 1))
    try:
        build_sampler(config.sampler, labels=labels, continuous=continuous, seed=config.seed)
    except ValueError as error:
        return [str(error)]
    return []


def _find_balance_problems(sampler: ClassBalancedSamplerConfig, num_classes: int) -> list[str]:
    ratio = sampler.class_ratio
    if ratio is not None and round(ratio * num_classes) < 2:
        return [
            f"sampler.class_ratio must leave at least two of the {num_classes} training classes "
            f"in a batch. Got {ratio}, which leaves {ratio * num_classes:.2g}. Raise it."
        ]
    try:
        compute_batch_shape(sampler, num_classes=num_classes)
    except ValueError as error:
        return [str(error)]
    return []


def _check_corner(
    study: ResolvedStudy, arm: ResolvedArm, corner: dict[str, Any], size: TrainingSize | None
) -> Iterable[str]:
    try:
        config = study.resolve_config(arm.name, corner, seed=study.seeds[0])
    except ConfigError as error:
        yield from error.problems
        return
    flat = to_flat_dict(config)
    for key in flatten({**study.definition.fixed, **arm.layer, **corner}):
        if key not in flat:
            section = key.split(".")[0]
            yield f"{key} has no effect, since a later layer chooses another {section}.name."
    epochs, scheduler = config.training.epochs, study.scheduler
    if scheduler.name == "asha" and arm.space and scheduler.grace_epochs >= epochs:
        yield (
            "scheduler.grace_epochs must be below training.epochs, or nothing is ever pruned. "
            f"Got {scheduler.grace_epochs} and {epochs}."
        )
    if size is not None:
        yield from find_batch_problems(config, size)


def _merge_findings(study: ResolvedStudy, findings: Sequence[Finding]) -> list[str]:
    """Returns each problem once, with arms and values only if it depends on them."""
    by_text: dict[str, list[Finding]] = {}
    for finding in findings:
        by_text.setdefault(finding.text, []).append(finding)
    return [_describe_problem(study, text, found) for text, found in by_text.items()]


def _describe_problem(study: ResolvedStudy, text: str, found: list[Finding]) -> str:
    key, definition = text.split(" ")[0], study.definition
    arms = list(dict.fromkeys(finding.arm for finding in found))
    arm = study.get_arm(arms[0])
    listed = f"arms.{arms[0]}" if len(arms) == 1 else f"arms {', '.join(arms)}"
    is_everywhere = len(arms) == len(study.arms)
    if key in arm.space and key not in definition.nuisance:
        return f"{listed}: nuisance.{text}"
    for section, keys in (("nuisance", definition.nuisance), ("fixed", definition.fixed)):
        if key in keys and key not in arm.layer:
            return f"{section}.{text}" if is_everywhere else f"{section}.{text} (in {listed})"
    shown = ""
    if sum(finding.arm == arm.name for finding in found) < len(list_corners(arm.space)):
        shown = " with " + ", ".join(f"{key}={value!r}" for key, value in found[0].values)
    is_general = is_everywhere and not shown and key not in arm.layer
    return text if is_general else f"{listed}{shown}: {text}"
