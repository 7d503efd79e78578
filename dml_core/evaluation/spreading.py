"""Divides an evaluation into parts that may run in other processes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Shared = TypeVar("Shared")
Part = TypeVar("Part")
Result = TypeVar("Result")


class RunParts(Protocol):
    """Runs a function on parts, here or elsewhere."""

    def __call__(
        self, function: Callable[[Shared, Part], Result], shared: Shared, parts: Sequence[Part], /
    ) -> Iterator[Result]:
        """Yields function(shared, part) for each part, in order."""


@dataclass(frozen=True)
class Spread:
    """How an evaluation is divided; its results are the same bits as without it."""

    run: RunParts
    part_size: int
    """Images of a part; fewer images are not divided."""
    lanes: int = 1
    """Parts that run at once."""


def run_here(
    function: Callable[[Shared, Part], Result], shared: Shared, parts: Sequence[Part], /
) -> Iterator[Result]:
    """Yields function(shared, part) for each part, in this process."""
    return (function(shared, part) for part in parts)


def runner_of(spread: Spread | None) -> RunParts:
    """Returns where the parts of an evaluation run: here, if it is not divided."""
    return run_here if spread is None else spread.run


def split_rows(num_rows: int, *, part_size: int, multiple: int) -> list[range]:
    """Returns ranges that cover all rows and begin at whole multiples.

    Args:
        num_rows: at least 1.
        part_size: rows of a range, rounded up to a multiple.
        multiple: rows that are computed at once and must not be separated.
    """
    step = -(-part_size // multiple) * multiple
    return [range(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def call_part(shared: Sequence[Any], part: Callable[..., Result]) -> Result:
    """Returns part(*shared): runs a whole function as one part."""
    return part(*shared)
