"""The measures that a study may list."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dml_core.measures.results import Measured, WinnerFolder


@dataclass(frozen=True)
class Measure:
    """A measurement on the winners of a study."""

    take: Callable[[Sequence[WinnerFolder]], Measured]
    takes_one: bool
    """Whether it may be taken winner by winner; otherwise one process compares all of them."""


def _measure_gradients(winners: Sequence[WinnerFolder]) -> Measured:
    # Late, as in the next functions: the names of measures are read without torch.
    from dml_core.measures.gradients import measure_gradients

    return measure_gradients(winners)


def _measure_step_cost(winners: Sequence[WinnerFolder]) -> Measured:
    from dml_core.measures.step_cost import measure_step_cost

    return measure_step_cost(winners)


def _measure_search_cost(winners: Sequence[WinnerFolder]) -> Measured:
    from dml_core.measures.search_cost import measure_search_cost

    return measure_search_cost(winners)


MEASURES = {
    "gradients": Measure(_measure_gradients, takes_one=True),
    "step_cost": Measure(_measure_step_cost, takes_one=False),
    "search_cost": Measure(_measure_search_cost, takes_one=False),
}
