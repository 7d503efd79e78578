"""Maps a function over items by Ray tasks on all nodes of the joined cluster, in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from dml_core.config.pipeline import RayConfig
from tasks.sweep.cluster import count_concurrent

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_RETRIES = 3
"""How often a task starts again after its worker or node was lost; its own errors are raised."""


class TaskLost(RuntimeError):
    """The worker of a task died again and again; the message has the likely reason."""


def map_on_ray(
    function: Callable[[Shared, Item], Result],
    shared: Shared,
    items: Iterable[Item],
    /,
    *,
    config: RayConfig,
    ahead: int = 0,
    is_idle: bool = False,
) -> Generator[Result, None, None]:
    """Yields function(shared, item) for each item, in order.

    Each call is a task with the resources of a trial's worker. Few are in flight at a time, so
    memory stays bounded if there are many items or the consumer is slow.

    Args:
        function: of an importable module.
        shared: sent to each node once, where all its workers read one copy of its arrays.
        items: sent with their tasks; a generator is read as far as tasks are in flight.
        config: the resources of a task.
        ahead: tasks in flight; by default twice as many as fit on the cluster, or
            ray.max_concurrent.
        is_idle: whether the tasks only wait for other tasks, and so need no resources.

    Raises:
        TaskLost: when the worker of a task was lost `MAX_RETRIES` times more.
    """
    import ray

    lanes = count_concurrent(config)
    ahead = ahead or (lanes if config.max_concurrent else 2 * lanes)
    needs = {"num_cpus": config.cpus_per_trial, "num_gpus": config.gpus_per_trial}
    task = ray.remote(_call).options(
        **({"num_cpus": 0} if is_idle else needs),
        max_retries=MAX_RETRIES,
        scheduling_strategy="SPREAD",
    )
    reference = ray.put(shared)
    waiting: deque[Any] = deque()
    try:
        for item in items:
            waiting.append(task.remote(function, reference, item))
            if len(waiting) >= ahead:
                yield _get(waiting.popleft())
        while waiting:
            yield _get(waiting.popleft())
    finally:
        for unfinished in waiting:
            ray.cancel(unfinished, recursive=True)


def _call(function: Callable[[Shared, Item], Result], shared: Shared, item: Item) -> Result:
    return function(shared, item)


def _get(reference: Any) -> Any:
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        # The error itself is raised, as in one process; Ray's adds the worker's traceback.
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise
    except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
        raise TaskLost(
            f"a worker died {MAX_RETRIES + 1} times in the same task, most likely for lack of "
            f"memory ({type(error).__name__}). Run fewer at once: lower ray.max_concurrent, or "
            "raise ray.cpus_per_trial. Then run the same command again."
        ) from error
