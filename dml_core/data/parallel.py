"""Applies a function to many items on several processes or threads, with results in order."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from dml_core.data.records import DatasetError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerDied(DatasetError):
    """A process of a pool was killed."""


def count_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_order(
    function: Callable[[Item], Result], items: Sequence[Item], *, workers: int, chunk_size: int
) -> Generator[Result, None, None]:
    """Yields function(item) for each item, in order, whatever the number of workers.

    Few chunks are in flight at a time, so the memory stays bounded when the consumer is slow.
    With one worker, or with a single chunk, everything happens in this process.

    Raises:
        WorkerDied: when a process of the pool was killed.
    """
    chunks = [items[start : start + chunk_size] for start in range(0, len(items), chunk_size)]
    workers = min(workers, len(chunks))
    if workers < 2 or multiprocessing.current_process().daemon:
        yield from map(function, items)
        return
    # Spawned, since a fork of a process with threads (torch, arrow) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        yield from _run_chunks(pool, function, chunks, ahead=2 * workers)
    except BrokenProcessPool as error:
        raise WorkerDied(
            "a worker process died while reading images, most likely for want of memory. "
            f"Run with fewer workers (now {workers})."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_chunks(
    pool: ProcessPoolExecutor,
    function: Callable[[Item], Result],
    chunks: Sequence[Sequence[Item]],
    *,
    ahead: int,
) -> Iterator[Result]:
    waiting: deque[Future[list[Result]]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(_apply, function, chunk))
        if len(waiting) >= ahead:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()


def _apply(function: Callable[[Item], Result], chunk: Sequence[Item]) -> list[Result]:
    return [function(item) for item in chunk]


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
