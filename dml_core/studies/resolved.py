"""A study resolved over its parameters: its arms, and the trials that it makes."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.config.loading import flatten, to_flat_dict
from dml_core.config.problems import suggest
from dml_core.seeding import numpy_stream
from dml_core.studies.definition import ArmDefinition, SchedulerConfig, Searcher, Study
from dml_core.studies.dimensions import Dimension
from dml_core.trials.spec import Phase, TrialSpec


@dataclass(frozen=True)
class ResolvedArm:
    """An arm with everything the study says about it."""

    name: str
    layer: dict[str, Any]
    """Its scientific values by dotted key, those of the grid included."""
    space: Mapping[str, Dimension]
    """What is tuned for it, the study's and its own, in the order of the keys."""
    compare_with: str = ""
    """The arm that its score is compared with; empty for the study's baseline."""


def expand_arms(study: Study) -> list[ResolvedArm]:
    """Returns the arms in the order of the file: each listed arm times the grid."""
    listed = study.arms or {"": ArmDefinition()}
    return [
        _make_arm(study, name, definition, point)
        for name, definition in listed.items()
        for point in _grid_points(study.grid or {})
    ]


def name_grid_point(point: Mapping[str, Any], *, has_prefix: bool = False) -> str:
    """Returns a short name that is safe as a folder's, such as `triplet-64` or `batch_size-30`.

    A word speaks for itself; a number does so only where it is the one number beside a word.

    Args:
        point: a value for each key of the grid.
        has_prefix: whether the name of a listed arm stands before it.
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
    # A grid without keys has one point, which changes nothing.
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
        # Sorted, so that the order of lines in the file draws no other numbers.
        space=dict(sorted(space.items())),
        # With a grid, the same point of the other arm.
        compare_with=_join(definition.compare_with, suffix) if definition.compare_with else "",
    )


def _join(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _make_safe(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return re.sub(r"[^A-Za-z0-9._]+", "_", text).strip("_.") or "_"


@dataclass(frozen=True)
class ResolvedStudy:
    """Everything that decides a study's trials; equal ones give equal trials on every machine."""

    name: str
    path: Path
    """The file it was read from."""
    definition: Study
    """What the file says, with the profile put over it."""
    arms: tuple[ResolvedArm, ...]
    baseline: str
    trials_per_arm: int
    """Tries for each arm with nuisance values; 0 where no arm has any."""
    seeds: tuple[int, ...]
    folds: int
    searcher: Searcher
    scheduler: SchedulerConfig
    search_seed: int
    params: dict[str, Any]
    """The trial's keys of params.yaml, below the study's `fixed`."""
    overrides: dict[str, Any]
    """The trial's keys of `--set`, above everything else."""
    text: str = ""
    """The file's content, as it was read."""

    @property
    def digest(self) -> str:
        """Sha256 over all that decides the trials' results, but for the data and the code.

        What is compared and drawn afterwards (baseline, figure) and how many folders the results
        lie in has no part in it.
        """
        text = json.dumps(self._decisive(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def searched_arms(self) -> list[ResolvedArm]:
        """The arms that have something to tune."""
        return [arm for arm in self.arms if arm.space]

    @property
    def references(self) -> dict[str, str]:
        """For each arm but the baseline, the arm that it is compared with."""
        return {
            arm.name: arm.compare_with or self.baseline
            for arm in self.arms
            if arm.name != self.baseline
        }

    def get_arm(self, name: str) -> ResolvedArm:
        """Returns the arm with this name; a ValueError with the nearest one if there is none."""
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
        """Returns the whole configuration of a trial of an arm.

        Args:
            arm_name: which arm.
            values: its nuisance values; None takes a corner of their ranges, for all that they
                do not touch.
            seed: the trial's seed.
            fold: which fold is its validation set.
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
        """Returns an arm's configuration for everything that is not tuned, with the first seed."""
        return self.resolve_config(arm_name, seed=self.seeds[0])

    def make_search_spec(
        self, arm_name: str, number: int, values: Mapping[str, Any], *, fold: int = 0
    ) -> TrialSpec:
        """Returns the trial that tries nuisance values for an arm.

        Raises:
            ValueError: when the values are not those of the arm's search space, or the number or
                the fold is out of its range.
        """
        self._check_values(arm_name, values)
        if not (0 <= number < self.trials_per_arm and 0 <= fold < self.folds):
            raise ValueError(
                f"study {self.name!r} has {self.trials_per_arm} tries an arm over {self.folds} "
                f"fold(s). Got number {number} and fold {fold}."
            )
        suffix = f"-fold{fold}" if self.folds > 1 else ""
        config = self.resolve_config(arm_name, values, seed=self.seeds[0], fold=fold)
        return self._spec(arm_name, f"{number}{suffix}", "search", number, values, config)

    def draw_values(self, arm_name: str, number: int) -> dict[str, Any]:
        """Returns the nuisance values of an arm's try, for grid and random search.

        They depend on the search's seed, the study's, the arm's name and the number alone.
        """
        arm = self.get_arm(arm_name)
        if self.searcher == "tpe":
            raise ValueError(
                f"study {self.name!r} uses searcher: tpe, whose values depend on the results of "
                "earlier tries, so they cannot be listed before."
            )
        if self.searcher == "grid":
            points = itertools.product(*(d.corners() for d in arm.space.values()))
            return dict(zip(arm.space, next(itertools.islice(points, number, None)), strict=True))
        stream = numpy_stream(self.search_seed, f"search {self.name} {arm_name}", step=number)
        return {key: dimension.sample(stream) for key, dimension in arm.space.items()}

    def search_specs(self) -> list[TrialSpec]:
        """Returns every trial of a grid or random search, all arms' first tries before the second.

        An arm without nuisance values has none. So every arm has come equally far at any time.
        """
        return [
            self.make_search_spec(arm.name, number, self.draw_values(arm.name, number), fold=fold)
            for number in range(self.trials_per_arm)
            for arm in self.searched_arms
            for fold in range(self.folds)
        ]

    def repeat_specs(self, winners: Mapping[str, Mapping[str, Any]]) -> list[TrialSpec]:
        """Returns each winner's trainings over all seeds, validated on the first fold.

        Args:
            winners: nuisance values by arm; an arm that is not named is not repeated.
        """
        for arm_name, values in winners.items():
            self._check_values(arm_name, values)
        return [
            self._spec(
                arm.name,
                f"seed{seed}",
                "repeat",
                position,
                winners[arm.name],
                self.resolve_config(arm.name, winners[arm.name], seed=seed),
            )
            for position, seed in enumerate(self.seeds)
            for arm in self.arms
            if arm.name in winners
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
        # The three forms of suffix end differently, so no two trials share an id whatever the
        # names of the arms.
        trial_id = f"{arm_name}-{suffix}"
        return TrialSpec(trial_id, self.name, arm_name, phase, number, dict(values), config)

    def _check_values(self, arm_name: str, values: Mapping[str, Any]) -> None:
        space = self.get_arm(arm_name).space
        if set(values) != set(space):
            raise ValueError(
                f"study {self.name!r}, arm {arm_name!r}: the values must be those of its nuisance "
                f"keys {sorted(space)}. Got {sorted(values)}."
            )
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
            # Where the data lie decides nothing, and what became of leaks is in the data's hash.
            del flat["data.prepared_root"], flat["data.alias"], flat["data.on_leak"]
            arms[arm.name] = [flat, {key: d.describe() for key, d in arm.space.items()}]
        return {
            "name": self.name,
            "arms": arms,
            "trials_per_arm": self.trials_per_arm,
            "seeds": self.seeds,
            "folds": self.folds,
            "searcher": self.searcher,
            "scheduler": self.scheduler.model_dump(),
            "search_seed": self.search_seed,
        }
