"""Finds searches that cannot give every arm the same number of tries."""

import math
from collections.abc import Iterable

from dml_core.studies.arms import ResolvedArm
from dml_core.studies.definition import Study
from dml_core.studies.dimensions import Choice


def count_trials_per_arm(study: Study, arms: Iterable[ResolvedArm]) -> int:
    """Returns the tries of each arm that has something to tune; 0 where none has."""
    searched = [arm for arm in arms if arm.space]
    if not searched:
        return 0
    if study.searcher == "grid" and study.trials_per_arm is None:
        return _count_points(searched[0])
    return study.trials_per_arm or 0


def find_budget_problems(study: Study, arms: Iterable[ResolvedArm]) -> list[str]:
    """Returns what is wrong with the search's size, a sentence each."""
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
        return [f"trials_per_arm is missing; searcher: {study.searcher} needs a number of tries."]
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
