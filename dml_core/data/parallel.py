"""Parallel maps over processes and threads, with results in order."""

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
    """A process of the pool was killed."""


def count_cores() -> int:
    """Returns the number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_order(
    function: Callable[[Item], Result], items: Sequence[Item], *, workers: int, chunk_size: int
) -> Generator[Result, None, None]:
    """Yields function(item) for each item, in order, for any number of workers.

    Few chunks are in flight at a time, so memory stays bounded if the consumer is slow. One worker
    or a single chunk runs in this process.

    Raises:
        WorkerDied: if a process of the pool was killed.
    """
    chunks = [items[start : start + chunk_size] for start in range(0, len(items), chunk_size)]
    workers = min(workers, len(chunks))
    if workers < 2 or multiprocessing.current_process().daemon:
        yield from map(function, items)
        return
    # Spawned, because forking a process with threads (torch, arrow) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        yield from _run_chunks(pool, function, chunks, ahead=2 * workers)
    except BrokenProcessPool as error:
        raise WorkerDied(
            "a worker process died while reading images, most likely out of memory. "
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


# Items in flight per worker: one in progress and one ready hide the latency.
_AHEAD = 2


def prefetch(
    make: Callable[[Item], Result], items: Iterable[Item], *, workers: int
) -> Iterator[Result]:
    """Yields make(item) for each item, in order, for any number of threads.

    Threads suffice: reading, resizing and copying release the GIL. With 0 workers everything runs
    on this thread, which is easier to debug and profile.
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
