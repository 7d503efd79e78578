"""Makes batches ahead of their use, in threads, and hands them over in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Batches waiting for each worker: one in the making and one ready is enough to hide the making.
_AHEAD = 2


def prefetch(
    make: Callable[[Item], Result], items: Iterable[Item], *, workers: int
) -> Iterator[Result]:
    """Yields make(item) for each item, in order, whatever the number of workers.

    Threads suffice: reading, resizing and copying let go of the interpreter lock. With no
    workers everything happens in line, which is easier to debug and profile.
    """
    if workers == 0:
        yield from map(make, items)
        return
    source = iter(items)
    with ThreadPoolExecutor(workers, thread_name_prefix="batches") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in islice(source, workers * _AHEAD):
                waiting.append(pool.submit(make, item))
            while waiting:
                result = waiting.popleft().result()
                for item in islice(source, 1):
                    waiting.append(pool.submit(make, item))
                yield result
        finally:
            for future in waiting:
                future.cancel()
