"""Ranges and choices of nuisance values: the dimensions of a search space."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import PlainValidator

from dml_core.trials.winners import Bound

RangeKind = Literal["uniform", "log_uniform", "int_uniform"]

KINDS = ("uniform", "log_uniform", "int_uniform", "choice")
MAX_WHOLE_NUMBER = 2**53
"""Largest bound of int_uniform: beyond it floats skip integers."""
MAX_OPTIONS = 1_000
AT_BOUND_FRACTION = 0.05
"""A value within this share of its range from an end counts as at the bound."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, inclusive."""

    kind: RangeKind
    """uniform; log_uniform, uniform in the logarithm; int_uniform, integers."""
    low: float
    high: float

    def sample(self, stream: np.random.Generator) -> float | int:
        """Returns a random number of the range, rounded to six digits so that it can be retyped."""
        if self.kind == "int_uniform":
            return int(stream.integers(int(self.low), int(self.high), endpoint=True))
        drawn = self._from_position(float(stream.random()))
        return min(max(float(f"{drawn:.6g}"), self.low), self.high)

    def corners(self) -> tuple[Any, ...]:
        """Returns the values to check for validity: both ends."""
        return (self.low, self.high)

    def contains(self, value: Any) -> bool:
        """Returns whether the value lies in the range and has its type."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        is_whole = self.kind != "int_uniform" or float(value).is_integer()
        return is_whole and self.low <= value <= self.high

    def find_bound(self, value: Any) -> Bound | None:
        """Returns the end of the range that the value lies within 5 % of, if any."""
        position = self._to_position(float(value))
        if position <= AT_BOUND_FRACTION:
            return "low"
        return "high" if position >= 1 - AT_BOUND_FRACTION else None

    def describe(self) -> dict[str, Any]:
        """Returns the range as written in a study."""
        return {self.kind: [self.low, self.high]}

    def _from_position(self, position: float) -> float:
        if self.kind == "log_uniform":
            low, high = math.log(self.low), math.log(self.high)
            return math.exp(low + position * (high - low))
        return self.low + position * (self.high - self.low)

    def _to_position(self, value: float) -> float:
        if self.kind == "log_uniform":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Choice:
    """One of several options."""

    options: tuple[Any, ...]

    @property
    def kind(self) -> Literal["choice"]:
        """The key of a choice in a study."""
        return "choice"

    def sample(self, stream: np.random.Generator) -> Any:
        """Returns a random option; all are equally likely."""
        return self.options[int(stream.integers(len(self.options)))]

    def corners(self) -> tuple[Any, ...]:
        """Returns the values to check for validity: every option."""
        return self.options

    def contains(self, value: Any) -> bool:
        """Returns whether the value is an option."""
        return value in self.options

    def find_bound(self, value: Any) -> Bound | None:
        """Returns the end at which the value lies, if the options are three or more numbers."""
        numbers = [option for option in self.options if _is_number(option)]
        # Each of two options is an end, and words have no order.
        if len(numbers) < max(3, len(self.options)):
            return None
        if value == min(numbers):
            return "low"
        return "high" if value == max(numbers) else None

    def describe(self) -> dict[str, Any]:
        """Returns the choice as written in a study."""
        return {"choice": list(self.options)}


def is_dimension(value: Any) -> bool:
    """Returns whether a value of a study file is a range or a choice."""
    return isinstance(value, Mapping) and any(key in KINDS for key in value)


def parse_dimension(value: Any) -> Range | Choice:
    """Parses `{log_uniform: [low, high]}`, `{choice: [...]}` and the like.

    Raises:
        ValueError: with the rule and the value.
    """
    if isinstance(value, Range | Choice):
        return value
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in KINDS:
        raise ValueError(
            "must be a search range, as {log_uniform: [low, high]}, with one of "
            f"{', '.join(KINDS)}. Got {value!r}. A value that is not searched belongs in fixed"
        )
    kind, inside = next(iter(value.items()))
    return _parse_choice(inside) if kind == "choice" else _parse_range(kind, inside)


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)


def _parse_choice(options: Any) -> Choice:
    if not isinstance(options, list) or not options:
        raise ValueError(f"choice must be a list with at least one entry. Got {options!r}")
    if len(options) > MAX_OPTIONS:
        raise ValueError(f"choice must list at most {MAX_OPTIONS:,} options. Got {len(options):,}")
    twice = [option for place, option in enumerate(options) if option in options[:place]]
    if twice:
        raise ValueError(f"choice must name each option once. Got {twice[0]!r} twice")
    return Choice(tuple(options))


def _parse_range(kind: RangeKind, ends: Any) -> Range:
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_number, ends)):
        raise ValueError(f"{kind} must be two finite numbers, [low, high]. Got {ends!r}")
    low, high = ends
    if kind == "int_uniform" and not (float(low).is_integer() and float(high).is_integer()):
        raise ValueError(f"int_uniform must have two integers. Got {ends!r}")
    if low >= high:
        raise ValueError(f"{kind} must have low < high. Got low={low} and high={high}")
    if kind == "log_uniform" and low <= 0:
        raise ValueError(f"log_uniform must have low > 0, for its logarithm. Got low={low}")
    if kind == "int_uniform" and max(-low, high) > MAX_WHOLE_NUMBER:
        raise ValueError(f"int_uniform must stay within {MAX_WHOLE_NUMBER:,}. Got {ends!r}")
    to_number = int if kind == "int_uniform" else float
    return Range(kind, to_number(low), to_number(high))


Dimension = Range | Choice
"""The range or choice of one nuisance value."""

DimensionField = Annotated[Dimension, PlainValidator(parse_dimension)]
"""A `Dimension` as a pydantic field."""
