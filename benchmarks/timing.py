"""Times competitors in turns, so that a noisy machine is noisy for all of them."""

import statistics
import time
from collections.abc import Callable, Mapping


def time_in_turns(
    competitors: Mapping[str, Callable[[], object]], *, rounds: int = 15
) -> dict[str, float]:
    """Returns the median seconds of each competitor over interleaved rounds; one warm-up each."""
    for run in competitors.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, run in competitors.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}
