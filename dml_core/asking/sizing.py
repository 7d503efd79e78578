"""Sizes a study to a budget of minutes: epochs first, then tries, seeds and arms."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dml_core.asking.recipes import Length, Recipe

SHARE = 0.5
"""Share of the budget for the study itself. The rest is for seeds that are added while the budget
lasts, and for what was measured too low."""
LAST_SHARE = 0.85
"""Share of the budget that the smallest study may take."""
NUM_VALIDATIONS = 6
"""Validations of a training: enough to choose an epoch, and to see whether it still rises."""
PATIENCE_SECONDS = 20.0
"""The time to pack images is known after so long."""
SEEDS = 2
"""The fewest that an interval needs: so there is an answer as early as possible, and every further
seed is added to the arms that need it."""
_TRIES = (2, 1)
"""From the best to the cheapest. A search needs two."""


class BudgetTooSmall(ValueError):
    """The minutes are too few for the smallest study."""


@dataclass(frozen=True)
class Costs:
    """What a study takes on this machine, in seconds."""

    step: float
    """A training step on one worker."""
    steps_per_epoch: int
    validation: float
    winner: float
    """The evaluation of one winner on the test images."""
    trial: float
    """The start and the end of a trial."""
    fixed: float
    """Servers and the cluster, which do not depend on the number of trials."""
    num_concurrent: int
    """Trials at once."""
    report: float = 0.0
    """What follows the evaluation of the winners, and the evaluation without training."""

    def of_trial(self, epochs: int) -> float:
        """Returns the seconds of a trial."""
        steps = epochs * self.steps_per_epoch * self.step
        return self.trial + steps + min(epochs, NUM_VALIDATIONS) * self.validation


@dataclass(frozen=True)
class Size:
    """The size of a study."""

    arms: tuple[str, ...]
    epochs: int
    tries: int
    """Learning rates for each arm; 1 takes the recipe's single one, without a search."""
    seeds: int

    @property
    def num_trials(self) -> int:
        """Trainings: tries, one more beyond the best, which is at an end of two; seeds."""
        return len(self.arms) * ((self.tries + 1 if self.tries > 1 else 0) + self.seeds)

    def seconds(self, costs: Costs) -> float:
        """Returns about how long the study takes."""
        winners = len(self.arms) * self.seeds * costs.winner
        training = self.num_trials * costs.of_trial(self.epochs)
        return (training + winners) / costs.num_concurrent + costs.fixed + costs.report

    def seconds_after_sweep(self, costs: Costs) -> float:
        """Returns about how long evaluation and report take; winners come one by one."""
        return len(self.arms) * self.seeds * costs.winner + costs.report

    def count_affordable(self, costs: Costs, *, budget_seconds: float) -> int:
        """Returns how many seeds an arm can have within a budget, at least two more than now.

        The looks that add seeds are planned up to this number: in larger steps, the first one
        might not fit, and the rest of the budget would be lost.
        """
        each = len(self.arms) * (costs.of_trial(self.epochs) + costs.winner) / costs.num_concurrent
        return self.seeds + max(2, int((budget_seconds - self.seconds(costs)) / each))


def size_study(
    recipe: Recipe,
    arms: Sequence[str],
    costs: Costs,
    *,
    budget_seconds: float,
    spent_seconds: float = 0.0,
) -> Size:
    """Returns the best study that takes half of the budget; the smallest one may take most of it.

    All arms are trained long enough first; where that does not fit, fewer tries, a shorter training
    down to the recipe's least, and at last fewer arms.

    Args:
        recipe: how long a training must be.
        arms: by name, the most promising first.
        costs: measured on this machine.
        budget_seconds: the whole budget that is left.
        spent_seconds: what looking, packing and measuring took.

    Raises:
        BudgetTooSmall: with the minutes that the smallest study needs.
    """
    available = SHARE * budget_seconds
    length = recipe.count_epochs(costs.steps_per_epoch)
    for smallest in _list_choices(length, arms):
        spare = available - smallest.seconds(costs)
        if spare < 0:
            continue
        each = smallest.num_trials * costs.steps_per_epoch * costs.step / costs.num_concurrent
        # More epochs may also have more validations.
        spare -= smallest.num_trials * NUM_VALIDATIONS * costs.validation / costs.num_concurrent
        epochs = smallest.epochs + (max(0, int(spare / each)) if each > 0 else length.most)
        return Size(smallest.arms, min(epochs, length.most), smallest.tries, smallest.seeds)
    last = Size(tuple(arms[:2]), length.least, 1, SEEDS)
    if last.seconds(costs) <= LAST_SHARE * budget_seconds:
        return last
    needed = last.seconds(costs) / 60
    enough = math.ceil(spent_seconds / 60 + needed / LAST_SHARE)
    raise BudgetTooSmall(
        f"--minutes must be at least {enough}: two arms with two seeds and {length.least} "
        f"epochs take about {needed:.1f} minutes here. Found {budget_seconds / 60:.1f} that "
        "are left. Give more minutes, or fewer images: --set data.max_images_per_class=20"
    )


def check_preparation(seconds: float, num_images: int, *, budget_seconds: float) -> None:
    """Raises BudgetTooSmall if passing the images through a frozen network takes too long.

    Args:
        seconds: how long it takes.
        num_images: the images, each once for each of its views.
        budget_seconds: the budget that is left.
    """
    if seconds > SHARE * budget_seconds:
        raise _too_slow(
            f"passing {num_images:,} images through the frozen part of the network",
            seconds,
            budget_seconds,
        )


def _too_slow(what: str, seconds: float, budget_seconds: float) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"--minutes must be at least {round(seconds / SHARE / 60 + 0.5)}: {what} takes about "
        f"{seconds / 60:.1f} minutes here, and half of the budget is for the training. Got "
        f"{budget_seconds / 60:.1f} that are left. Give more minutes, or fewer images: --set "
        "data.max_images_per_class=20"
    )


class PackingWatch:
    """Stops the packing of images early if it would take more than its share of the budget."""

    def __init__(
        self, budget_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts the watch.

        Args:
            budget_seconds: the budget that is left.
            clock: returns seconds.
        """
        self._budget_seconds = budget_seconds
        self._clock = clock
        self._started = clock()
        self._done = self._first = 0

    def count(self, done: int, total: int) -> None:
        """Receives how many images are packed; raises BudgetTooSmall."""
        if done < self._done or not self._done:
            # Listing many images takes a while, and data from before may be checked first and then
            # packed anew: the time counts from the first image on.
            self._started, self._first = self._clock(), done
        self._done = done
        seconds, packed = self._clock() - self._started, done - self._first
        expected = seconds * total / max(1, packed)
        is_known = packed and seconds >= PATIENCE_SECONDS
        if not is_known or expected <= SHARE * self._budget_seconds:
            return
        raise _too_slow(f"packing {total:,} images", expected, self._budget_seconds)


def _list_choices(length: Length, arms: Sequence[str]) -> Iterator[Size]:
    """Yields studies with their least epochs, from the best to the smallest."""
    for epochs in (length.enough, length.least):
        for tries in _TRIES:
            yield Size(tuple(arms), epochs, tries, SEEDS)
    for count in range(len(arms) - 1, 1, -1):
        for tries in _TRIES:
            yield Size(tuple(arms[:count]), length.least, tries, SEEDS)
