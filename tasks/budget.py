"""The budget of a command: when its sweep must end, so that an answer is there in time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from tasks.study import StudyContext, read_stage_seconds

MOST_SEEDS = 20
"""Default of `--most-seeds`."""
STOP_SECONDS = 8.0
"""What the end of a sweep takes: its workers stop, and DVC and MLflow record it."""


class BudgetSpent(ValueError):
    """The budget ended before the trainings that an answer needs; every journal is kept."""


@dataclass(frozen=True)
class SeedBudget:
    """How far seeds are added, and when a sweep must end."""

    most_seeds: int = MOST_SEEDS
    minutes: float | None = None
    """From the start of the command; None sets no limit."""
    reserve_seconds: float | None = None
    """What evaluation and report take: a sweep ends so long before the budget does. None lets the
    sweep of a study run to its end, and only looks that would not fit are left out."""
    num_reserved: int = 0
    """The trained models whose evaluation the reserve holds; 0 while it is an estimate for all."""
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Seconds until the budget is spent; infinite without a limit."""
        if self.minutes is None:
            return float("inf")
        return 60 * self.minutes - (time.monotonic() - self.started)

    def with_measured(self, context: StudyContext, seconds: float) -> Self:
        """Returns the budget with the time that evaluation and report of a study took."""
        if self.reserve_seconds is None:
            return self
        num_models = context.study.num_repeats
        return replace(self, reserve_seconds=seconds, num_reserved=num_models)

    def seconds_after_sweep(self, context: StudyContext, *, num_added: int = 0) -> float:
        """Returns about how long a study takes once its trials have ended.

        Args:
            context: the study.
            num_added: trials of a look that is not in its file yet.
        """
        evaluation = read_stage_seconds(context).get("evaluate", 0.0)
        if self.reserve_seconds is None:
            return evaluation
        reserve = STOP_SECONDS + self.reserve_seconds
        if not self.num_reserved:
            return reserve
        more = max(0, context.study.num_repeats + num_added - self.num_reserved)
        return reserve + evaluation * more / self.num_reserved

    def seconds_of_sweep(self, context: StudyContext) -> float | None:
        """Returns how long a sweep that begins now may take; None for as long as it needs."""
        if self.reserve_seconds is None or self.minutes is None:
            return None
        return max(0.0, self.seconds_left - self.seconds_after_sweep(context))


class SweepLimit:
    """Ends a sweep whose time is over."""

    def __init__(
        self,
        seconds: float | None,
        count: Callable[[], tuple[int, int]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the clock.

        Args:
            seconds: how long the sweep may take; None sets no limit.
            count: returns how many trials have ended, and how many there are.
            clock: returns seconds.
        """
        self._end = float("inf") if seconds is None else clock() + seconds
        self._count = count
        self._clock = clock

    def check(self) -> None:
        """Raises BudgetSpent once the time is over."""
        if self._clock() < self._end:
            return
        done, total = self._count()
        raise BudgetSpent(
            f"not enough time for an answer: {done} of {total} trainings are finished. Every epoch "
            "is kept, and the same command resumes."
        )
