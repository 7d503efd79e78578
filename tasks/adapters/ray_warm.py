"""Worker processes that have imported what a trial needs before the trial arrives."""

import importlib
import time

import ray

_IMPORTED = ("ray.tune", "tasks.adapters.ray_trainable")
_SECONDS_APART = 1.0
"""How long a worker stays taken, so that the next one of the imports goes to another worker."""


def warm_workers(number: int) -> list["ray.ObjectRef[None]"]:
    """Lets so many idle workers of the joined cluster import what a trial needs; does not wait.

    Tune ends its workers with each sweep, and a new one spends longer on importing torch than a
    small trial takes. Ray hands an idle worker of the same driver to the next one who asks.
    """
    # No core is asked for: the driver's evaluation comes first, and nobody may wait for this.
    warm = _import_trainable.options(num_cpus=0, scheduling_strategy="SPREAD")
    return [warm.remote() for _ in range(number)]


@ray.remote(max_retries=0)
def _import_trainable() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    time.sleep(_SECONDS_APART)
