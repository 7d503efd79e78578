"""Finds what makes a study's answer worthless though each of its lines is well-formed."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.config.problems import suggest
from dml_core.studies.arms import ResolvedArm
from dml_core.studies.data_checks import find_arm_data_problems
from dml_core.studies.definition import NAME_PATTERN
from dml_core.studies.resolved import ResolvedStudy

_OWNED = {
    "seed": "seeds lists the seeds of all trials",
    "data.folds": "folds says it",
    "data.fold": "every try is judged on all folds",
}


def find_key_problems(study: ResolvedStudy) -> list[str]:
    """Returns keys that stand in two places that contradict each other, a sentence each."""
    return [
        *_find_owned_keys(study),
        *_find_contradictions(study),
        *_find_overridden_keys(study),
    ]


def find_arm_set_problems(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns what is wrong with the arms as a set: names, equal ones, different data."""
    return [
        *_find_bad_names(study),
        *_find_equal_arms(study, configs),
        *find_arm_data_problems(study, configs),
    ]


def find_baseline_problems(study: ResolvedStudy) -> list[str]:
    """Returns the arms to compare with that do not exist."""
    names = [arm.name for arm in study.arms]
    wanted = {"baseline": study.baseline}
    wanted |= {f"arms.{a.name}.compare_with": a.compare_with for a in study.arms if a.compare_with}
    problems = [
        f"{key} must be one of the arms. Got {name!r}.{suggest(name, names)} "
        f"The arms: {', '.join(names)}."
        for key, name in wanted.items()
        if name not in names
    ]
    problems += [
        f"arms.{arm.name}.compare_with must be another arm. Got itself."
        for arm in study.arms
        if arm.compare_with == arm.name
    ]
    return problems


def _find_owned_keys(study: ResolvedStudy) -> Iterable[str]:
    places: list[tuple[str, Iterable[str]]] = [
        ("fixed.", study.definition.fixed),
        ("--set ", study.overrides),
        ("nuisance.", study.definition.nuisance),
        ("grid.", study.definition.grid or ()),
    ]
    for name, arm in (study.definition.arms or {}).items():
        places += [(f"arms.{name}.", arm.scientific), (f"arms.{name}.nuisance.", arm.nuisance)]
    for place, keys in places:
        for key in keys:
            # Of --set, data.folds is heard where the study leaves it open.
            is_open = place == "--set " and key == "data.folds" and study.definition.folds is None
            if key in _OWNED and not is_open:
                yield f"{place}{key} is the study's own to set: {_OWNED[key]}. Leave it out."


def _find_contradictions(study: ResolvedStudy) -> Iterable[str]:
    definition = study.definition
    for key in definition.nuisance:
        if key in definition.fixed:
            yield f"nuisance.{key} is fixed too. Leave it out of one of them."
        owners = [arm.name for arm in study.arms if key in arm.layer]
        if owners:
            yield (
                f"nuisance.{key} is scientific too, in arm {owners[0]!r}. A value is either "
                "what the question is about, or tuned."
            )
    for name, arm in (definition.arms or {}).items():
        for key in arm.nuisance:
            both = {"scientific": arm.scientific, "fixed": definition.fixed}
            both["grid"] = dict.fromkeys(definition.grid or {})
            for place, keys in both.items():
                if key in keys:
                    yield f"arms.{name}.nuisance.{key} is in {place} too. Leave one out."
        for key in set(arm.scientific) & set(definition.grid or {}):
            yield f"arms.{name}.{key} is in grid too, which would win. Leave one out."


def _find_overridden_keys(study: ResolvedStudy) -> Iterable[str]:
    for key in study.overrides:
        arms = [arm.name for arm in study.arms if key in arm.layer or key in arm.space]
        if arms:
            yield (
                f"--set {key} would override what the study varies in arm {arms[0]!r}, so that "
                "arms become equal. Leave it out, or edit the study."
            )


def _find_bad_names(study: ResolvedStudy) -> Iterable[str]:
    seen: dict[str, str] = {}
    for arm in study.arms:
        if not re.match(NAME_PATTERN, arm.name):
            yield (
                f"arm {arm.name!r} must have a name of up to 80 letters, digits, dots, dashes and "
                "underscores that can be a folder's. List it under arms with a name of its own."
            )
        # Some file systems do not tell A from a.
        other = seen.setdefault(arm.name.lower(), arm.name)
        if other != arm.name:
            yield f"arms {other!r} and {arm.name!r} differ by case alone. Rename one."
    names = [arm.name for arm in study.arms]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"grid makes two arms named {name!r}. List them under arms with names of their own."


def _find_equal_arms(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> Iterable[str]:
    seen: dict[str, str] = {}
    for arm in study.arms:
        if arm.name not in configs:
            continue
        other = seen.setdefault(_identify(arm, configs[arm.name]), arm.name)
        if other != arm.name:
            yield (
                f"arms.{arm.name} changes nothing: with all defaults and fixed values it equals "
                f"arm {other!r}. Change a value, or leave it out."
            )


def _identify(arm: ResolvedArm, config: TrialConfig) -> str:
    flat: dict[str, Any] = to_flat_dict(config)
    # Where the data lie decides nothing.
    left_out = {*arm.space, "data.alias", "data.prepared_root"}
    kept = {key: value for key, value in flat.items() if key not in left_out}
    space = {key: dimension.describe() for key, dimension in arm.space.items()}
    # Options may be anything that YAML can write, such as dates; those are refused elsewhere.
    return json.dumps([kept, space], sort_keys=True, default=str)
