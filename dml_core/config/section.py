"""The base class of all configuration sections."""

from pydantic import BaseModel, ConfigDict


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
