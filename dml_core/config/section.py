"""The base class of all configuration sections."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

Plain = float | int | bool | str | None | list[Any]
"""A value of an option: what YAML writes without a mapping."""
Kind = TypeVar("Kind")
PREFIXES = ("pml", "python")
"""Kinds with many names: a prefix before a colon."""


class Section(BaseModel):
    """A frozen group of keys that rejects unknown keys and non-finite numbers.

    The docstring below a field is its description.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class ChosenSection(Section):
    """A section with several kinds, selected by `name`.

    Fields that a kind inherits from the section's base class are shared by all kinds; the others
    belong to that kind. If a later layer of the configuration selects another `name`, the shared
    values stay and the fields of the previous kind are dropped.
    """


def read_tag(value: Any) -> str:
    """Returns the kind of a section: its name, or the prefix before a colon."""
    name = str(value.get("name") if isinstance(value, dict) else getattr(value, "name", None))
    prefix = name.partition(":")[0]
    return prefix if ":" in name and prefix in PREFIXES else name


def find_kind(classes: Mapping[str, Kind], name: object) -> Kind | None:
    """Returns the class of a kind by name or prefix; None for an unknown name.

    Args:
        classes: by their default name.
        name: as in a configuration.
    """
    tag = read_tag({"name": name})
    return next((kind for key, kind in classes.items() if read_tag({"name": key}) == tag), None)
