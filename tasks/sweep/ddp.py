"""Distributed training of one trial on a Ray cluster.

Tune places the trial's bundles. Its own worker takes the first bundle as rank 0 and starts an
actor in each of the others. When one rank ends, all end, and Tune restarts the trial.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util import get_current_placement_group, get_node_ip_address
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dml_core.config import TrialConfig
from dml_core.devices import choose_device
from dml_core.training.ddp import WorkerGroup, WorkerLost
from tasks.sweep.job import TrialJob
from tasks.sweep.worker import work_as_other_rank

_SECONDS_FOR_CAUSE = 10.0


class RankActor:
    """An actor that trains as one rank above 0."""

    def address(self) -> str:
        """Returns the address at which the other ranks reach this one."""
        return str(get_node_ip_address())

    def train(self, job: dict[str, Any], *, rank: int, host: str, port: int) -> None:
        """Trains until the training ends, or another rank is gone."""
        from dml_core.training.ddp_local import LOOPBACK, connect_to_store, init_worker_group

        def join(config: TrialConfig) -> WorkerGroup:
            return init_worker_group(
                connect_to_store(host, port),
                rank=rank,
                world_size=config.trial.workers,
                address=host if host == LOOPBACK else self.address(),
                device=choose_device(config.training.device),
            )

        work_as_other_rank(TrialJob(**job), join=join)


@contextmanager
def ray_worker_group(job: TrialJob, config: TrialConfig) -> Iterator[WorkerGroup | None]:
    """Starts a rank in each bundle of this trial and yields rank 0's view; None for one worker.

    Args:
        job: the trial.
        config: the trial's configuration on this node.

    Raises:
        WorkerLost: when a rank died; the trial can resume from its checkpoint.
    """
    if config.trial.workers == 1:
        yield None
        return
    actors = _start_actors(config.trial.workers)
    futures: list[Any] = []
    try:
        group = _init_rank_zero(job, config, actors, futures)
        try:
            yield group
        finally:
            group.close()
    except WorkerLost as lost:
        raise _find_cause(futures) or lost from lost
    finally:
        for actor in actors:
            ray.kill(actor)


def _start_actors(workers: int) -> list[Any]:
    bundles = get_current_placement_group()
    assert bundles is not None, "Tune places every trial in a placement group"
    actor = ray.remote(RankActor)
    return [
        actor.options(
            num_cpus=bundles.bundle_specs[rank].get("CPU", 0),
            num_gpus=bundles.bundle_specs[rank].get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                bundles, placement_group_bundle_index=rank
            ),
        ).remote()
        for rank in range(1, workers)
    ]


def _init_rank_zero(
    job: TrialJob, config: TrialConfig, actors: list[Any], futures: list[Any]
) -> WorkerGroup:
    """Starts the store, sends its address to the actors, and adds their futures to the list."""
    from dml_core.training.ddp_local import LOOPBACK, init_worker_group, start_store

    own = str(get_node_ip_address())
    try:
        addresses = ray.get([actor.address.remote() for actor in actors])
    except RayActorError as error:
        raise WorkerLost(_say_death(error)) from error
    # Ranks on one machine stay off the network.
    host = LOOPBACK if set(addresses) == {own} else own
    store = start_store(host)
    futures += [
        actor.train.remote(asdict(job), rank=rank, host=host, port=store.port)
        for rank, actor in enumerate(actors, start=1)
    ]
    return init_worker_group(
        store,
        rank=0,
        world_size=config.trial.workers,
        address=host,
        device=choose_device(config.training.device),
        check_alive=lambda: _check_alive(futures),
    )


def _check_alive(futures: list[Any]) -> None:
    ended, _ = ray.wait(futures, num_returns=len(futures), timeout=0)
    if ended:
        raise WorkerLost("a worker of the trial ended before the others.")


def _find_cause(futures: list[Any]) -> Exception | None:
    """Returns why a rank ended: its own error, or the death of its process."""
    if not futures:
        return None
    ended, _ = ray.wait(futures, num_returns=len(futures), timeout=_SECONDS_FOR_CAUSE)
    for future in ended:
        try:
            ray.get(future)
        except RayActorError as error:
            return WorkerLost(_say_death(error))
        except RayError as error:
            # A rank that lost the others does not know the cause.
            if not isinstance(error, WorkerLost):
                cause = getattr(error, "cause", None)
                return cause if isinstance(cause, Exception) else error
    return None


def _say_death(error: RayActorError) -> str:
    lines = str(error).strip().splitlines()
    detail = f": {lines[0][:200]}" if lines else ""
    return f"a worker of the trial died{detail}. The trial resumes from its last checkpoint."
