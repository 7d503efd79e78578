"""A study resolved over params.yaml: its arms and its trials."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.config.loading import flatten, to_flat_dict
from dml_core.config.problems import suggest
from dml_core.seeding import numpy_stream
from dml_core.studies.added_seeds import AddedSeeds
from dml_core.studies.definition import (
    SEARCH_SEED,
    ArmDefinition,
    SchedulerConfig,
    Searcher,
    Study,
)
from dml_core.studies.dimensions import Dimension
from dml_core.trials.spec import Phase, TrialSpec


@dataclass(frozen=True)
class ResolvedArm:
    """An arm with its values, search space and reference."""

    name: str
    layer: dict[str, Any]
    """Its scientific values by dotted key, including those of the grid."""
    space: Mapping[str, Dimension]
    """Its nuisance values, the study's and its own, sorted by key."""
    compare_with: str = ""
    """The arm to compare its score with; empty for the study's baseline."""


def expand_arms(study: Study) -> list[ResolvedArm]:
    """Returns the arms in the order of the file: each listed arm with each grid point."""
    listed = study.arms or {"": ArmDefinition()}
    return [
        _make_arm(study, name, definition, point)
        for name, definition in listed.items()
        for point in _grid_points(study.grid or {})
    ]


def name_grid_point(point: Mapping[str, Any], *, has_prefix: bool = False) -> str:
    """Returns a short folder-safe name, such as `triplet-64` or `batch_size-30`.

    A word appears without its key; a number only if it is the only number beside a word.

    Args:
        point: a value for each key of the grid.
        has_prefix: whether the name of a listed arm precedes it.
    """
    numbers = [key for key, value in point.items() if not isinstance(value, str)]
    speaks_alone = len(numbers) == 1 and (has_prefix or len(point) > 1)
    parts = [
        _make_safe(value)
        if isinstance(value, str) or speaks_alone
        else f"{_make_safe(key.split('.')[-1])}-{_make_safe(value)}"
        for key, value in point.items()
    ]
    return "-".join(parts)


def _grid_points(grid: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    # An empty grid has one point without values.
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _make_arm(
    study: Study, name: str, definition: ArmDefinition, point: Mapping[str, Any]
) -> ResolvedArm:
    suffix = name_grid_point(point, has_prefix=bool(name))
    space = {**study.nuisance, **definition.nuisance}
    return ResolvedArm(
        name=_join(name, suffix),
        # A grid may list whole sections, such as {name: triplet, margin: 0.1}.
        layer=flatten({**definition.scientific, **point}),
        # Sorted, so that samples do not depend on the order of lines in the file.
        space=dict(sorted(space.items())),
        # With a grid, compare with the same grid point of the other arm.
        compare_with=_join(definition.compare_with, suffix) if definition.compare_with else "",
    )


def _join(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _make_safe(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return re.sub(r"[^A-Za-z0-9._]+", "_", text).strip("_.") or "_"


@dataclass(frozen=True)
class ResolvedStudy:
    """Everything that decides a study's trials; equal studies have equal trials everywhere."""

    name: str
    path: Path
    """The file of the study."""
    definition: Study
    """The content of the file, with the profile applied."""
    arms: tuple[ResolvedArm, ...]
    baseline: str
    trials_per_arm: int
    """Tries per arm with nuisance values, of which a single one is not searched; 0 if no arm has
    any."""
    seeds: tuple[int, ...]
    folds: int
    searcher: Searcher
    scheduler: SchedulerConfig
    search_seed: int
    params: dict[str, Any]
    """The trial's keys of params.yaml; the study's `fixed` overrides them."""
    overrides: dict[str, Any]
    """The trial's keys of `--set`, which override everything else."""
    text: str = ""
    """The text of the file."""
    added: AddedSeeds = field(default_factory=AddedSeeds)
    """Seeds that `dml run --until-decided` has added."""

    @property
    def num_looks(self) -> int:
        """How often the results are judged in all."""
        return max(self.definition.looks, self.added.looks)

    def seeds_of(self, arm_name: str) -> tuple[int, ...]:
        """Returns the seeds with which an arm's winner is trained."""
        return tuple(dict.fromkeys([*self.seeds, *self.added.seeds.get(arm_name, ())]))

    @property
    def num_repeats(self) -> int:
        """Trials of the repeat phase."""
        return sum(len(self.seeds_of(arm.name)) for arm in self.arms)

    @property
    def digest(self) -> str:
        """SHA-256 over all that decides the trials' results, except for data and code.

        It does not cover the comparison and the figures (baseline, figure), paths, or seeds that
        were added later: they answer the same question, and are recorded in the same MLflow run.
        """
        text = json.dumps(self._decisive(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def searched_arms(self) -> list[ResolvedArm]:
        """The arms whose nuisance values are chosen among several."""
        return [arm for arm in self.arms if self.single_values(arm.name) is None]

    def single_values(self, arm_name: str) -> dict[str, Any] | None:
        """Returns the nuisance values of an arm without a search; None if there is one.

        An arm without nuisance values has an empty choice, and a single try needs no comparison.
        """
        if not self.get_arm(arm_name).space:
            return {}
        is_single = self.trials_per_arm == 1 and self.searcher != "tpe"
        return self.draw_values(arm_name, 0) if is_single else None

    @property
    def references(self) -> dict[str, str]:
        """By arm, the arm to compare it with, where the study names one."""
        named = {arm.name: arm.compare_with or self.definition.baseline for arm in self.arms}
        return {arm: other for arm, other in named.items() if other and other != arm}

    def get_arm(self, name: str) -> ResolvedArm:
        """Returns the arm with this name; raises ValueError with the nearest name otherwise."""
        names = [arm.name for arm in self.arms]
        if name not in names:
            raise ValueError(
                f"study {self.name!r} has no arm {name!r}.{suggest(name, names)} "
                f"Its arms: {', '.join(names)}."
            )
        return self.arms[names.index(name)]

    def resolve_config(
        self, arm_name: str, values: Mapping[str, Any] | None = None, *, seed: int, fold: int = 0
    ) -> TrialConfig:
        """Returns the resolved configuration of a trial of an arm.

        Args:
            arm_name: name of the arm.
            values: nuisance values; None takes a corner of the search space, for callers that do
                not read them.
            seed: seed of the trial.
            fold: fold of the validation set.
        """
        arm = self.get_arm(arm_name)
        if values is None:
            values = {key: dimension.corners()[0] for key, dimension in arm.space.items()}
        return resolve_trial_config(
            self.params,
            self.definition.fixed,
            arm.layer,
            dict(values),
            self.overrides,
            {"seed": seed, "data.folds": self.folds, "data.fold": fold},
            source=f"{self.path}, arm {arm_name}",
        )

    def arm_config(self, arm_name: str) -> TrialConfig:
        """Returns an arm's configuration with the first seed and placeholder nuisance values."""
        return self.resolve_config(arm_name, seed=self.seeds[0])

    def make_search_spec(
        self, arm_name: str, number: int, values: Mapping[str, Any], *, fold: int = 0
    ) -> TrialSpec:
        """Returns the search trial of an arm with these nuisance values.

        Raises:
            ValueError: when the values are not in the arm's search space, or the number or fold is
                out of range.
        """
        self._check_values(arm_name, values)
        if not (0 <= number < self.trials_per_arm and 0 <= fold < self.folds):
            raise ValueError(
                f"study {self.name!r} has {self.trials_per_arm} trials per arm over {self.folds} "
                f"fold(s). Got number {number} and fold {fold}."
            )
        return self.make_further_spec(arm_name, number, values, fold=fold)

    def make_further_spec(
        self, arm_name: str, number: int, values: Mapping[str, Any], *, fold: int = 0
    ) -> TrialSpec:
        """Returns a search trial whose values may lie outside of the arm's search space.

        Raises:
            ValueError: when the values are not for the keys of the search space.
        """
        self._check_keys(arm_name, values)
        suffix = f"-fold{fold}" if self.folds > 1 else ""
        config = self.resolve_config(arm_name, values, seed=SEARCH_SEED, fold=fold)
        return self._spec(arm_name, f"{number}{suffix}", "search", number, values, config)

    def draw_values(self, arm_name: str, number: int) -> dict[str, Any]:
        """Returns the nuisance values of an arm's search trial, for grid and random search.

        They depend only on the search seed, the names of study and arm, and the number.
        """
        arm = self.get_arm(arm_name)
        if self.searcher == "tpe":
            raise ValueError(
                f"study {self.name!r} uses searcher: tpe, whose values depend on the results of "
                "earlier trials, so they cannot be listed in advance."
            )
        if self.searcher == "grid":
            points = itertools.product(*(d.corners() for d in arm.space.values()))
            return dict(zip(arm.space, next(itertools.islice(points, number, None)), strict=True))
        stream = numpy_stream(self.search_seed, f"search {self.name} {arm_name}", step=number)
        return {key: dimension.sample(stream) for key, dimension in arm.space.items()}

    def search_specs(self) -> list[TrialSpec]:
        """Returns every trial of a grid or random search, alternating between the arms.

        So all arms progress equally. An arm with a single choice has no search trials.
        """
        return [
            self.make_search_spec(arm.name, number, self.draw_values(arm.name, number), fold=fold)
            for number in range(self.trials_per_arm)
            for arm in self.searched_arms
            for fold in range(self.folds)
        ]

    def repeat_specs(self, winners: Mapping[str, Mapping[str, Any]]) -> list[TrialSpec]:
        """Returns the trials of each winner over its seeds, validated on the first fold.

        They alternate between the arms, so that all progress equally.

        Args:
            winners: nuisance values by arm; arms that are absent are not repeated.
        """
        for arm_name, values in winners.items():
            self._check_keys(arm_name, values)
        arms = [arm.name for arm in self.arms if arm.name in winners]
        placed = [
            (place, arm, seed) for arm in arms for place, seed in enumerate(self.seeds_of(arm))
        ]
        # The sort is stable, so arms keep their order.
        placed.sort(key=lambda each: each[0])
        return [
            self._spec(
                arm,
                f"seed{seed}",
                "repeat",
                place,
                winners[arm],
                self.resolve_config(arm, winners[arm], seed=seed),
            )
            for place, arm, seed in placed
        ]

    def _spec(
        self,
        arm_name: str,
        suffix: str,
        phase: Phase,
        number: int,
        values: Mapping[str, Any],
        config: TrialConfig,
    ) -> TrialSpec:
        # The three forms of suffix end differently, so trial ids are unique for any names of arms.
        trial_id = f"{arm_name}-{suffix}"
        return TrialSpec(trial_id, self.name, arm_name, phase, number, dict(values), config)

    def _check_keys(self, arm_name: str, values: Mapping[str, Any]) -> None:
        space = self.get_arm(arm_name).space
        if set(values) != set(space):
            raise ValueError(
                f"study {self.name!r}, arm {arm_name!r}: the values must be for its nuisance "
                f"keys {sorted(space)}. Got {sorted(values)}."
            )

    def _check_values(self, arm_name: str, values: Mapping[str, Any]) -> None:
        self._check_keys(arm_name, values)
        space = self.get_arm(arm_name).space
        outside = {key: value for key, value in values.items() if not space[key].contains(value)}
        if outside:
            key, value = next(iter(outside.items()))
            raise ValueError(
                f"study {self.name!r}, arm {arm_name!r}: {key} must lie in "
                f"{space[key].describe()}. Got {value!r}."
            )

    def _decisive(self) -> dict[str, Any]:
        arms = {}
        for arm in self.arms:
            flat = to_flat_dict(self.arm_config(arm.name))
            # Paths decide nothing, and the hash of the data covers the handling of leaks.
            del flat["data.prepared_root"], flat["data.alias"], flat["data.on_leak"]
            arms[arm.name] = [flat, {key: d.describe() for key, d in arm.space.items()}]
        return {
            "name": self.name,
            "arms": arms,
            "trials_per_arm": self.trials_per_arm,
            "seeds": self.seeds,
            "edge_rounds": self.definition.edge_rounds,
            "folds": self.folds,
            "searcher": self.searcher,
            "scheduler": self.scheduler.model_dump(),
            "search_seed": self.search_seed,
        }
