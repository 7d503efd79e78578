"""Finds studies that are too large to be read, checked or run in a lifetime."""

from collections.abc import Iterable

from dml_core.studies.arms import ResolvedArm
from dml_core.studies.resolved import ResolvedStudy

MAX_CONFIGURATIONS = 5_000
"""Configurations that checking a study looks at, about a millisecond each."""
MAX_TRAININGS = 20_000
"""Trainings of one study: its search over all folds, and its repeats."""


def find_size_problems(study: ResolvedStudy) -> list[str]:
    """Returns why a study cannot even be checked or listed, a sentence each."""
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
    total = searched + len(study.arms) * len(study.seeds)
    if total > MAX_TRAININGS:
        yield (
            f"trials_per_arm={study.trials_per_arm:,} over {len(study.arms):,} arms, "
            f"{study.folds} fold(s) and {len(study.seeds):,} seeds makes {total:,} trainings, more "
            f"than {MAX_TRAININGS:,}. Make several studies of it."
        )


def _count_corners(arm: ResolvedArm) -> int:
    return 2 + sum(len(dimension.corners()) for dimension in arm.space.values())
