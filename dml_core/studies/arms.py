"""Makes the arms of a study out of its list and its grid."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dml_core.config.loading import flatten
from dml_core.studies.definition import ArmDefinition, Study
from dml_core.studies.dimensions import Dimension


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
