"""What a paper claims, said so that the numbers of a run can be held against it by rule."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dml_core.config.section import Section


class Side(Section):
    """One side of a claim: the mean of a metric over some arms, seed by seed."""

    arms: tuple[str, ...] = Field(min_length=1)
    """Names of arms; several are averaged."""
    metric: str = ""
    """As in figures; `first.`, `last.` or `mean.` before it takes one number of a curve over the
    epochs. Empty takes the main figure's first."""


class Trend(Section):
    """How a metric changes with a key that the arms vary: its slope over the values' ranks."""

    key: str
    """A key with numbers as values."""
    metric: str = ""
    """As in `Side`."""
    arms: tuple[str, ...] = ()
    """Only these arms; empty takes all."""


class Claim(Section):
    """A sentence of a paper and the rule that says whether a run supports it.

    The left side less the right one (or the slope of a trend) is taken for each seed. Its 95 %
    interval over the seeds decides: supported where all of it is as expected, contradicted where
    none of it is, and otherwise nobody can tell.
    """

    text: str = Field(min_length=1)
    """What the paper says, in one line."""
    left: Side | None = None
    """The side that is claimed to be higher or lower."""
    right: Side | None = None
    """What it is compared with; empty compares with zero."""
    trend: Trend | None = None
    """In the place of the two sides."""
    expect: Literal["higher", "lower", "within"] = "higher"
    """Whether the difference lies above `by`, below minus `by`, or between the two."""
    by: float = Field(default=0.0, ge=0)
    """By how much at least; for within, at most."""
    ratio: bool = False
    """Take the left side divided by the right one, less 1, in the place of the difference."""

    @model_validator(mode="after")
    def check_sides(self) -> Self:
        """Refuses a claim that says nothing, or two things."""
        if (self.left is None) == (self.trend is None):
            found = "both" if self.left else "neither"
            raise ValueError(f"needs exactly one of left and trend. Got {found}")
        if self.right is None and self.ratio:
            raise ValueError("ratio needs a right side to divide by. Got none")
        if self.expect == "within" and self.by == 0:
            raise ValueError("expect: within needs by, the largest difference that still counts")
        return self
