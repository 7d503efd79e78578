"""The base class of all configuration sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of knobs that refuses unknown keys and numbers that are not finite.

    The text under a field describes it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class ChosenSection(Section):
    """A section with several kinds, told apart by `name`.

    The fields of a kind's own class belong to that kind; the fields that a kind inherits from
    the section's base class are shared. When a later layer of the configuration chooses another
    `name`, the shared values stay and the former kind's own knobs are dropped.
    """
