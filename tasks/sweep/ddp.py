"""Lets several workers of a Ray cluster train one trial: a leader in Tune's hands, and members.

Tune places the trial's bundles; its own worker takes the first and leads, and starts an actor in
each of the others. Whoever ends, the others end with it, and Tune starts the trial again.
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
from dml_core.training.ddp import Team, TeamBroken
from dml_core.training.determinism import choose_device
from tasks.sweep.job import TrialOrder
from tasks.sweep.worker import follow_trial

_SECONDS_TO_EXPLAIN = 10.0


class Member:
    """An actor that trains as one of a trial's workers."""

    def address(self) -> str:
        """Returns where the other workers reach this one."""
        return str(get_node_ip_address())

    def follow(self, order: dict[str, Any], *, rank: int, host: str, port: int) -> None:
        """Trains until the leader lets it go, or is gone."""
        from dml_core.training.ddp_local import LOOPBACK, join_team, visit_store

        def join(config: TrialConfig) -> Team:
            return join_team(
                visit_store(host, port),
                rank=rank,
                size=config.trial.workers,
                address=host if host == LOOPBACK else self.address(),
                device=choose_device(config.training.device),
            )

        follow_trial(TrialOrder(**order), join=join)


@contextmanager
def gather_ray_team(order: TrialOrder, config: TrialConfig) -> Iterator[Team | None]:
    """Yields the leader's place in a team over the bundles of this trial; None where it is alone.

    Args:
        order: the trial.
        config: the trial's, as this node has it.

    Raises:
        TeamBroken: when a worker died; the trial can go on from its checkpoint.
    """
    if config.trial.workers == 1:
        yield None
        return
    members = _start_members(config.trial.workers)
    futures: list[Any] = []
    try:
        team = _lead(order, config, members, futures)
        try:
            yield team
        finally:
            team.close()
    except TeamBroken as broken:
        raise _find_cause(futures) or broken from broken
    finally:
        for member in members:
            ray.kill(member)


def _start_members(workers: int) -> list[Any]:
    group = get_current_placement_group()
    assert group is not None, "Tune places every trial in a group"
    actor = ray.remote(Member)
    return [
        actor.options(
            num_cpus=group.bundle_specs[rank].get("CPU", 0),
            num_gpus=group.bundle_specs[rank].get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=rank
            ),
        ).remote()
        for rank in range(1, workers)
    ]


def _lead(order: TrialOrder, config: TrialConfig, members: list[Any], futures: list[Any]) -> Team:
    """Tells the members where to meet, and meets them; adds what tells of their ends."""
    from dml_core.training.ddp_local import LOOPBACK, join_team, open_store

    own = str(get_node_ip_address())
    try:
        addresses = ray.get([member.address.remote() for member in members])
    except RayActorError as error:
        raise TeamBroken(_say_death(error)) from error
    # What is on one machine is no business of the network.
    host = LOOPBACK if set(addresses) == {own} else own
    store = open_store(host)
    futures += [
        member.follow.remote(asdict(order), rank=rank, host=host, port=store.port)
        for rank, member in enumerate(members, start=1)
    ]
    return join_team(
        store,
        rank=0,
        size=config.trial.workers,
        address=host,
        device=choose_device(config.training.device),
        check_others=lambda: _check(futures),
    )


def _check(futures: list[Any]) -> None:
    ended, _ = ray.wait(futures, num_returns=len(futures), timeout=0)
    if ended:
        raise TeamBroken("a worker of the trial ended before the others.")


def _find_cause(futures: list[Any]) -> Exception | None:
    """Returns what ended a member: its own error, or that its process died."""
    if not futures:
        return None
    ended, _ = ray.wait(futures, num_returns=len(futures), timeout=_SECONDS_TO_EXPLAIN)
    for future in ended:
        try:
            ray.get(future)
        except RayActorError as error:
            return TeamBroken(_say_death(error))
        except RayError as error:
            # One that lost the others tells nothing of why.
            if not isinstance(error, TeamBroken):
                cause = getattr(error, "cause", None)
                return cause if isinstance(cause, Exception) else error
    return None


def _say_death(error: RayActorError) -> str:
    lines = str(error).strip().splitlines()
    told = f": {lines[0][:200]}" if lines else ""
    return f"a worker of the trial died{told}. It goes on from its last checkpoint."
