"""Finds problems of a well-formed study: its size, budget, data, keys and set of arms."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.data import DataBase
from dml_core.config.loading import to_flat_dict
from dml_core.config.problems import suggest
from dml_core.data.prepared_info import effective_values
from dml_core.studies.arm_checks import resolve_arms
from dml_core.studies.definition import NAME_PATTERN, Study
from dml_core.studies.dimensions import Choice
from dml_core.studies.resolved import ResolvedArm, ResolvedStudy

MAX_CONFIGURATIONS = 5_000
"""Most configurations that a check resolves, at about a millisecond each."""
MAX_TRAININGS = 20_000
"""Most trainings of one study: its search over all folds, and its repeats."""


def find_size_problems(study: ResolvedStudy) -> list[str]:
    """Returns why a study is too large to be checked, one sentence each."""
    return [*_find_many_configurations(study), *_find_many_trainings(study)]


def _find_many_configurations(study: ResolvedStudy) -> Iterable[str]:
    total = sum(_count_corners(arm) for arm in study.arms)
    if total > MAX_CONFIGURATIONS:
        yield (
            f"nuisance has so many options that {total:,} configurations would have to be checked, "
            f"more than {MAX_CONFIGURATIONS:,}. List fewer options, or give a range."
        )


def _find_many_trainings(study: ResolvedStudy) -> Iterable[str]:
    searched = len(study.searched_arms) * study.trials_per_arm * study.folds
    total = searched + study.num_repeats
    if total > MAX_TRAININGS:
        yield (
            f"trials_per_arm={study.trials_per_arm:,} over {len(study.arms):,} arms, "
            f"{study.folds} fold(s) and {len(study.seeds):,} seeds makes {total:,} trainings, more "
            f"than {MAX_TRAININGS:,}. Make several studies of it."
        )


def _count_corners(arm: ResolvedArm) -> int:
    return 2 + sum(len(dimension.corners()) for dimension in arm.space.values())


def count_trials_per_arm(study: Study, arms: Iterable[ResolvedArm]) -> int:
    """Returns the search trials per arm with nuisance values; 0 if no arm has any."""
    searched = [arm for arm in arms if arm.space]
    if not searched:
        return 0
    if study.searcher == "grid" and study.trials_per_arm is None:
        return _count_points(searched[0])
    return study.trials_per_arm or 0


def find_budget_problems(study: Study, arms: Iterable[ResolvedArm]) -> list[str]:
    """Returns the problems of the search's size, one sentence each."""
    searched = [arm for arm in arms if arm.space]
    if not searched:
        if study.trials_per_arm is None:
            return []
        return [
            f"trials_per_arm={study.trials_per_arm} has no use, since no arm has nuisance values "
            "to try. Leave it out, or name some under nuisance."
        ]
    if study.searcher == "grid":
        return list(_find_grid_problems(study, searched))
    if study.trials_per_arm is None:
        return [f"trials_per_arm is missing; searcher: {study.searcher} needs a number of trials."]
    return []


def _find_grid_problems(study: Study, searched: list[ResolvedArm]) -> Iterable[str]:
    ranges = dict.fromkeys(
        key
        for arm in searched
        for key, dimension in arm.space.items()
        if not isinstance(dimension, Choice)
    )
    for key in ranges:
        yield (
            f"nuisance.{key} is a range, which searcher: grid cannot list. "
            "Write {choice: [...]}, or use searcher: random."
        )
    if ranges:
        return
    sizes = {arm.name: _count_points(arm) for arm in searched}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield (
            "nuisance must give every arm a grid of the same size, so that all have the same "
            f"budget. Got {listed}. Use searcher: random."
        )
        return
    size = next(iter(sizes.values()))
    if study.trials_per_arm not in (None, size):
        yield (
            f"trials_per_arm must be the size of the grid, {size}, or be left out. "
            f"Got {study.trials_per_arm}. For a part of the grid use searcher: random."
        )


def _count_points(arm: ResolvedArm) -> int:
    return math.prod(len(dimension.corners()) for dimension in arm.space.values())


_PLACES = frozenset({"alias", "prepared_root"})


def find_arm_data_problems(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns why trials of one study would read different data, one sentence each."""
    return [*_find_tuned_data(study, configs), *_find_different_data(configs)]


def find_shared_folders(variants: Mapping[str, ResolvedStudy], project: DataBase) -> list[str]:
    """Returns why a study, or one of its profiles, would overwrite data that others read.

    Args:
        variants: the study under "", and with each profile under the profile's name.
        project: the dataset of params.yaml.
    """
    own = {name: data for name, study in variants.items() if (data := _data_of(study)) is not None}
    problems = [
        text for name, data in own.items() for text in _compare(name, variants[name], data, project)
    ]
    written = {
        name: data
        for name, study in variants.items()
        if "data.alias" in study.definition.fixed
        and (data := _data_of(replace(study, overrides={}))) is not None
    }
    for (one, first), (other, second) in itertools.combinations(written.items(), 2):
        problems += _compare_variants(one, first, other, second)
    return problems


def _decisive_values(data: DataBase) -> dict[str, Any]:
    """Returns the values that decide the prepared bytes, including the path of the raw images."""
    raw = getattr(data, "raw", None)
    return {**effective_values(data, has_undecided=True), **({} if raw is None else {"raw": raw})}


def _changed_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def _find_tuned_data(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> Iterable[str]:
    tuned = {
        key: arm.name
        for arm in study.arms
        if arm.name in configs
        for key in arm.space
        if key.removeprefix("data.") in {*_decisive_values(configs[arm.name].data), *_PLACES}
        and key.startswith("data.")
    }
    for key, arm in tuned.items():
        place = "" if key in study.definition.nuisance else f"arms.{arm}."
        yield (
            f"{place}nuisance.{key} cannot be tuned, since all trials of a study share one "
            "prepared dataset. Put one value into fixed, or make a study of each."
        )


def _find_different_data(configs: Mapping[str, TrialConfig]) -> Iterable[str]:
    first: tuple[str, dict[str, Any]] | None = None
    for arm, config in configs.items():
        values = {**_decisive_values(config.data), "alias": str(config.data.prepared_path)}
        first = first or (arm, values)
        changed = _changed_keys(first[1], values)
        if changed == ["alias"]:
            yield (
                f"arms.{arm} has another data.alias than arm {first[0]!r} for the same data. The "
                "name of a folder changes nothing, and the data would be prepared twice. Put it "
                "into fixed, or leave it out."
            )
        elif changed:
            yield (
                f"arms.{arm} has another data.{changed[0]} than arm {first[0]!r}, but all arms "
                "share one prepared dataset, or their scores could not be compared. "
                "Put it into fixed, or make a study of each."
            )


def _data_of(study: ResolvedStudy) -> DataBase | None:
    """Returns the dataset of a study's arms; None if they differ, which another check reports."""
    configs = resolve_arms(study)
    if not configs or any(_find_different_data(configs)):
        return None
    return next(iter(configs.values())).data


def _compare(
    profile: str, study: ResolvedStudy, data: DataBase, project: DataBase
) -> Iterable[str]:
    now, before = _decisive_values(data), _decisive_values(project)
    changed = _changed_keys(before, now)
    if not changed or data.prepared_path != project.prepared_path:
        return
    listed = ", ".join(
        f"{place}={now.get(key)!r} (in the parameters: {before.get(key)!r})"
        for key in changed
        if (place := _find_place(key, profile, study))
    )
    section = f"profiles.{profile}.fixed" if profile else "fixed"
    yield (
        f"{section}.data.alias must name the study's own folder if it changes the prepared data, "
        f"since preparing them would overwrite {project.prepared_path}, which other studies "
        f"read. Got {data.folder_name!r} and {listed or f'another data.{changed[0]}'}. "
        "Choose another name, or leave these values out."
    )


def _find_place(key: str, profile: str, study: ResolvedStudy) -> str:
    """Returns where a study sets a value of its data; empty if it follows from other values."""
    start, name = f"profiles.{profile}." if profile else "", f"data.{key}"
    if key == "folds":
        return f"{start}folds"
    if name in study.definition.fixed:
        return f"{start}fixed.{name}"
    owners = [arm.name for arm in study.arms if name in arm.layer]
    return f"arms.{owners[0]}.{name}" if owners else ""


def _compare_variants(one: str, first: DataBase, other: str, second: DataBase) -> Iterable[str]:
    changed = _changed_keys(_decisive_values(first), _decisive_values(second))
    who = f"profiles.{one}" if one else "the study itself"
    if changed and first.prepared_path == second.prepared_path:
        yield (
            f"profiles.{other} has another data.{changed[0]} than {who} under the same data.alias "
            f"{second.folder_name!r}, so each would overwrite the other's data. Set "
            f"another profiles.{other}.fixed.data.alias."
        )
    if not changed and first.prepared_path != second.prepared_path:
        yield (
            f"profiles.{other}.fixed.data.alias must be that of {who}, since their data differ by "
            f"the name alone and would be prepared twice. Got {second.folder_name!r} and "
            f"{first.folder_name!r}."
        )


_OWNED = {
    "seed": "seeds lists the seeds of all trials",
    "data.folds": "folds sets it",
    "data.fold": "every search trial runs on all folds",
}


def find_key_problems(study: ResolvedStudy) -> list[str]:
    """Returns keys that are set in two contradictory places, one sentence each."""
    return [
        *_find_owned_keys(study),
        *_find_contradictions(study),
        *_find_overridden_keys(study),
    ]


def find_arm_set_problems(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns the problems of the arms as a set: names, equal arms, different data."""
    return [
        *_find_bad_names(study),
        *_find_equal_arms(study, configs),
        *find_arm_data_problems(study, configs),
    ]


def find_baseline_problems(study: ResolvedStudy) -> list[str]:
    """Returns references to arms that do not exist, one sentence each."""
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
            # --set data.folds is allowed if the study leaves folds open.
            is_open = place == "--set " and key == "data.folds" and study.definition.folds is None
            if key in _OWNED and not is_open:
                yield f"{place}{key} is set by the study: {_OWNED[key]}. Leave it out."


def _find_contradictions(study: ResolvedStudy) -> Iterable[str]:
    definition = study.definition
    for key in definition.nuisance:
        if key in definition.fixed:
            yield f"nuisance.{key} is fixed too. Leave it out of one of them."
        owners = [arm.name for arm in study.arms if key in arm.layer]
        if owners:
            yield (
                f"nuisance.{key} is scientific too, in arm {owners[0]!r}. A key is either "
                "scientific or tuned."
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
                f"--set {key} would override a key that the study varies in arm {arms[0]!r}, so "
                "that arms become equal. Leave it out, or edit the study."
            )


def _find_bad_names(study: ResolvedStudy) -> Iterable[str]:
    seen: dict[str, str] = {}
    for arm in study.arms:
        if not re.match(NAME_PATTERN, arm.name):
            yield (
                f"arm {arm.name!r} must have a name of up to 80 letters, digits, dots, dashes and "
                "underscores, as a folder name. List it under arms with another name."
            )
        # Some file systems ignore case.
        other = seen.setdefault(arm.name.lower(), arm.name)
        if other != arm.name:
            yield f"arms {other!r} and {arm.name!r} differ only by case. Rename one."
    names = [arm.name for arm in study.arms]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"grid makes two arms named {name!r}. List them under arms with different names."


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
    # The path of the data decides nothing.
    left_out = {*arm.space, "data.alias", "data.prepared_root"}
    kept = {key: value for key, value in flat.items() if key not in left_out}
    space = {key: dimension.describe() for key, dimension in arm.space.items()}
    # Options may be anything that YAML can write, such as dates; those are refused elsewhere.
    return json.dumps([kept, space], sort_keys=True, default=str)
