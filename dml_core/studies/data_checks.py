"""Finds studies whose trials would read different data, or replace the data of others."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.data import DataBase
from dml_core.data.prepared_info import effective_values
from dml_core.studies.arm_checks import resolve_arms
from dml_core.studies.resolved import ResolvedStudy

_PLACES = frozenset({"alias", "prepared_root"})


def find_arm_data_problems(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns what makes trials of one study read different data, a sentence each."""
    return [*_find_tuned_data(study, configs), *_find_different_data(configs)]


def find_shared_folders(variants: Mapping[str, ResolvedStudy], project: DataBase) -> list[str]:
    """Returns why a study, or one of its profiles, would replace data that others read.

    Args:
        variants: the study by "", and the study with each of its profiles by the profile's name.
        project: the dataset of the parameters.
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
    """Returns the values that decide the prepared bytes, the place of the raw images included."""
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
                "name of a folder decides nothing, and the data would be prepared twice. Put it "
                "into fixed, or leave it out."
            )
        elif changed:
            yield (
                f"arms.{arm} has another data.{changed[0]} than arm {first[0]!r}, but all arms "
                "share one prepared dataset, or their scores could not be compared. "
                "Put it into fixed, or make a study of each."
            )


def _data_of(study: ResolvedStudy) -> DataBase | None:
    """Returns the dataset of a study's arms; None where it is not one, which is told elsewhere."""
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
        f"{section}.data.alias must name a folder of the study's own where it changes the prepared "
        f"data, since preparing them would overwrite {project.prepared_path}, which other studies "
        f"read. Got {data.folder_name!r} and {listed or f'another data.{changed[0]}'}. "
        "Choose another name, or leave these values out."
    )


def _find_place(key: str, profile: str, study: ResolvedStudy) -> str:
    """Returns where a study gives a value of its data; empty where it only follows from others."""
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
            f"{second.folder_name!r}, so each would replace the other's data. Give it a "
            f"profiles.{other}.fixed.data.alias of its own."
        )
    if not changed and first.prepared_path != second.prepared_path:
        yield (
            f"profiles.{other}.fixed.data.alias must be that of {who}, since their data differ by "
            f"the name alone and would be prepared twice. Got {second.folder_name!r} and "
            f"{first.folder_name!r}."
        )
