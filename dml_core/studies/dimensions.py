"""Ranges and choices of nuisance values: the dimensions of a search space."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import PlainValidator

from dml_core.trials.winners import Bound

RangeKind = Literal["uniform", "log_uniform", "int_uniform"]

KINDS = ("uniform", "log_uniform", "int_uniform", "choice")
MAX_WHOLE_NUMBER = 2**53
"""Largest bound of int_uniform: beyond it floats skip integers."""
MAX_OPTIONS = 1_000
MIN_FACTOR = 2.5
"""Positive options that span at least this factor are extended by factors."""
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

    def find_bound(self, value: Any, tried: Iterable[Any] = ()) -> Bound | None:
        """Returns the end of the range that the value lies within 5 % of, if any.

        Args:
            value: a value of the range.
            tried: values that were tried; those outside of the range widen it.
        """
        position = self._widened(tried)._to_position(float(value))
        if position <= AT_BOUND_FRACTION:
            return "low"
        return "high" if position >= 1 - AT_BOUND_FRACTION else None

    def step_beyond(self, bound: Bound, tried: Iterable[Any]) -> float | int | None:
        """Returns a value beyond an end: a quarter of the range beyond the outermost tried value.

        None where a whole number would not change.
        """
        wide = self._widened(tried)
        end = wide.low if bound == "low" else wide.high
        sign = -1 if bound == "low" else 1
        return self._round(self._from_position(self._to_position(end) + sign / 4), {end})

    def step_between(self, value: Any, other: Any) -> float | int | None:
        """Returns the middle of two values; None where there is no whole number between them."""
        middle = (self._to_position(float(value)) + self._to_position(float(other))) / 2
        return self._round(self._from_position(middle), {value, other})

    def describe(self) -> dict[str, Any]:
        """Returns the range as written in a study."""
        return {self.kind: [self.low, self.high]}

    def _widened(self, tried: Iterable[Any]) -> "Range":
        values = [float(value) for value in tried]
        return replace(self, low=min([self.low, *values]), high=max([self.high, *values]))

    def _round(self, value: float, taken: set[Any]) -> float | int | None:
        rounded = round(value) if self.kind == "int_uniform" else _round_number(value)
        return None if rounded in taken else rounded

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

    def find_bound(self, value: Any, tried: Iterable[Any] = ()) -> Bound | None:
        """Returns the end at which the value lies, if the options are two or more numbers.

        Args:
            value: an option, or a value that was tried beyond them.
            tried: all values that were tried.
        """
        numbers = self._numbers(tried)
        if value == min(numbers, default=None):
            return "low"
        return "high" if value == max(numbers, default=None) else None

    def step_beyond(self, bound: Bound, tried: Iterable[Any]) -> float | int | None:
        """Returns a value as far beyond an end as the next value is inside.

        None where the options have no order, or a whole number would not change.
        """
        numbers = self._numbers(tried)
        if not numbers:
            return None
        end, inner = numbers[:2] if bound == "low" else numbers[:-3:-1]
        beyond = end * end / inner if self._is_geometric() else 2 * end - inner
        return self._round(beyond, {end})

    def step_between(self, value: Any, other: Any) -> float | int | None:
        """Returns the middle of two numbers; None where there is no whole number between them."""
        is_geometric = self._is_geometric()
        middle = math.sqrt(value * other) if is_geometric else (value + other) / 2
        return self._round(middle, {value, other})

    def _numbers(self, tried: Iterable[Any]) -> list[float | int]:
        """Returns the options and tried values in order; none where the options have no order."""
        # Words have no order, nor has a single option a neighbour.
        if len(self.options) < 2 or not all(map(is_number, self.options)):
            return []
        return sorted({*self.options, *tried})

    def _is_geometric(self) -> bool:
        """Whether steps are factors, as for learning rates, and not differences."""
        low, high = min(self.options), max(self.options)
        return bool(low > 0 and high / low >= MIN_FACTOR)

    def _round(self, value: float, taken: set[Any]) -> float | int | None:
        is_whole = all(isinstance(option, int) for option in self.options)
        rounded = round(value) if is_whole else _round_number(value)
        return None if rounded in taken else rounded

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


def _round_number(value: float) -> float:
    """Rounds to three digits, so that a value can be retyped."""
    return float(f"{value:.3g}")


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number."""
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
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(is_number, ends)):
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
