"""Times competitors in turns, so that a noisy machine is noisy for all of them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks.settings import Settings

Clock = Callable[[], float]

PROCESSOR: Clock = time.process_time
"""Processor time of this process: what others do at the same time disturbs it less. It equals the
clock's on an idle machine with one thread, and is wrong for work in other processes."""
WALL: Clock = time.perf_counter
"""What a user waits."""
SHORTEST_SECONDS = 0.03
"""Work that is shorter is repeated within a round, since a clock's own steps would show."""


def time_in_turns(
    competitors: Mapping[str, Callable[[], object]],
    settings: Settings,
    *,
    rounds: int,
    within_seconds: float = math.inf,
    clock: Clock = PROCESSOR,
    warm_up: bool = True,
) -> dict[str, list[float]]:
    """Returns the seconds of each competitor, round by round.

    In one round each competitor runs once, or as often as fills a measurable time, and every
    second round runs them the other way around, so that none always follows the same one. Before
    that each runs once or twice to warm up, which work of minutes may do without. Rounds that would
    not end within the given seconds are left out, but for the first. A short run has nothing to
    measure: the time of everything is 1.
    """
    if settings.short:
        return {name: [1.0] for name in competitors}
    repeats = {
        name: _count_repeats(run, clock) if warm_up else 1 for name, run in competitors.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for number in rounds_within(within_seconds, most=rounds):
        for name in list(competitors)[:: -1 if number % 2 else 1]:
            run, times = competitors[name], repeats[name]
            started = clock()
            for _ in range(times):
                run()
            seconds[name].append((clock() - started) / times)
    return seconds


def rounds_within(seconds: float, *, most: int) -> Iterator[int]:
    """Yields the numbers of rounds: one at least, others while they should end in time.

    A slow machine thus measures less often what takes minutes, and the whole stays a short wait.
    """
    started = WALL()
    for number in range(most):
        taken = WALL() - started
        if number and taken * (number + 1) / number > seconds:
            return
        yield number


def _count_repeats(run: Callable[[], object], clock: Clock) -> int:
    run()
    started = clock()
    run()
    return max(1, math.ceil(SHORTEST_SECONDS / max(clock() - started, 1e-6)))
