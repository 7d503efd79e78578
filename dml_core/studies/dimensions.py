"""The ranges and choices that a nuisance value is searched in."""

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
"""Ends of int_uniform are at most so large: beyond it floats skip whole numbers."""
MAX_OPTIONS = 1_000
AT_BOUND_FRACTION = 0.05
"""A value so near to the end of its range, as a share of the range, was found at the bound."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    kind: RangeKind
    """uniform; log_uniform, where each power of ten is as likely; int_uniform, whole numbers."""
    low: float
    high: float

    def sample(self, stream: np.random.Generator) -> float | int:
        """Returns a random number of the range, with six digits, so that it can be typed again."""
        if self.kind == "int_uniform":
            return int(stream.integers(int(self.low), int(self.high), endpoint=True))
        drawn = self._from_position(float(stream.random()))
        return min(max(float(f"{drawn:.6g}"), self.low), self.high)

    def corners(self) -> tuple[Any, ...]:
        """Returns the values that show whether all values are allowed: both ends."""
        return (self.low, self.high)

    def contains(self, value: Any) -> bool:
        """Whether the value lies in the range and is of its type."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        is_whole = self.kind != "int_uniform" or float(value).is_integer()
        return is_whole and self.low <= value <= self.high

    def find_bound(self, value: Any) -> Bound | None:
        """Returns at which end of the range the value lies, if it lies within 5 % of one."""
        position = self._to_position(float(value))
        if position <= AT_BOUND_FRACTION:
            return "low"
        return "high" if position >= 1 - AT_BOUND_FRACTION else None

    def describe(self) -> dict[str, Any]:
        """Returns the range as a study writes it."""
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
    """One of some values."""

    options: tuple[Any, ...]

    @property
    def kind(self) -> Literal["choice"]:
        """The word that a study writes for it."""
        return "choice"

    def sample(self, stream: np.random.Generator) -> Any:
        """Returns one of the options, each as likely."""
        return self.options[int(stream.integers(len(self.options)))]

    def corners(self) -> tuple[Any, ...]:
        """Returns the values that show whether all values are allowed: every option."""
        return self.options

    def contains(self, value: Any) -> bool:
        """Whether the value is an option."""
        return value in self.options

    def find_bound(self, value: Any) -> Bound | None:
        """Returns at which end the value lies, where the options are three numbers or more."""
        numbers = [option for option in self.options if _is_number(option)]
        # Of two options each is an end, and words have no order: a bound would say nothing.
        if len(numbers) < max(3, len(self.options)):
            return None
        if value == min(numbers):
            return "low"
        return "high" if value == max(numbers) else None

    def describe(self) -> dict[str, Any]:
        """Returns the choice as a study writes it."""
        return {"choice": list(self.options)}


def is_dimension(value: Any) -> bool:
    """Whether a value of a study file is meant as a range or a choice."""
    return isinstance(value, Mapping) and any(key in KINDS for key in value)


def parse_dimension(value: Any) -> Range | Choice:
    """Returns what `{log_uniform: [low, high]}` or `{choice: [...]}` stands for.

    Raises:
        ValueError: with the rule and what was found.
    """
    if isinstance(value, Range | Choice):
        return value
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in KINDS:
        raise ValueError(
            "must say where to search, as {log_uniform: [low, high]}, with one of "
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
        raise ValueError(f"int_uniform must go from a whole number to another. Got {ends!r}")
    if low >= high:
        raise ValueError(f"{kind} must have low < high. Got low={low} and high={high}")
    if kind == "log_uniform" and low <= 0:
        raise ValueError(f"log_uniform must have low > 0, for its logarithm. Got low={low}")
    if kind == "int_uniform" and max(-low, high) > MAX_WHOLE_NUMBER:
        raise ValueError(f"int_uniform must stay within {MAX_WHOLE_NUMBER:,}. Got {ends!r}")
    to_number = int if kind == "int_uniform" else float
    return Range(kind, to_number(low), to_number(high))


Dimension = Range | Choice
"""What one nuisance value is searched in."""

DimensionField = Annotated[Dimension, PlainValidator(parse_dimension)]
"""A Dimension in a pydantic model."""
