"""Times competitors alternately, so that noise affects all of them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks.settings import Settings

Clock = Callable[[], float]

PROCESSOR: Clock = time.process_time
"""Processor time of this process, which other processes disturb less. It equals wall time on an
idle machine with one thread, and does not count work in other processes."""
WALL: Clock = time.perf_counter
"""Wall time."""
SHORTEST_SECONDS = 0.03
"""Shorter work is repeated within a round, because of the resolution of the clock."""


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

    In a round each competitor runs once, or as often as fills a measurable time. Every second round
    runs them in reverse order, so that none always follows the same one. Before the rounds each
    runs once or twice as a warm-up, which is optional for work of minutes. Rounds after the first
    that would exceed the given seconds are left out. In a short run every time is 1.
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
    """Yields the numbers of rounds: at least one, and more while they should end in time.

    A slow machine thus runs long work less often, which limits the total time.
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
