"""Nodes of the joined cluster, the resources that a trial needs there, and how many may run."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dml_core.config.pipeline import RayConfig
from dml_core.config.training import DdpConfig


@dataclass(frozen=True)
class NodeCount:
    """The nodes of a cluster at one moment."""

    there: int
    """Nodes with CPUs; a head that only conducts does not count."""
    requested: int
    """Nodes that the autoscaler starts at the moment; 0 if there is none."""

    def describe(self) -> str:
        """Returns the counts in words."""
        there = f"{self.there} node{'' if self.there == 1 else 's'}"
        return f"{there}, {self.requested} requested" if self.requested else there


def count_nodes() -> NodeCount:
    """Returns the nodes of the joined cluster."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    there = sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in nodes)
    return NodeCount(there, _count_requested())


@dataclass(frozen=True)
class TrialNeed:
    """The resources of one trial, with all its workers."""

    cpus: float
    gpus: float

    def count(self, *, cpus: float, gpus: float) -> int:
        """Returns how many such trials fit into so many CPUs and GPUs."""
        rooms = [cpus / self.cpus, *([gpus / self.gpus] if self.gpus else [])]
        # Sums of fractions such as 3 x 0.1 may end just below a whole number.
        return int(min(rooms) + 1e-9)


def need_of(config: RayConfig, trial: DdpConfig | None = None) -> TrialNeed:
    """Returns the resources of a trial; by default of one worker."""
    trial = trial or DdpConfig()
    return TrialNeed(config.cpus_per_trial * trial.workers, gpus_of(config, trial) * trial.workers)


def gpus_of(config: RayConfig, trial: DdpConfig) -> float:
    """Returns the GPUs of each worker of a trial."""
    return config.gpus_per_trial if trial.gpus_per_worker is None else trial.gpus_per_worker


def count_most(config: RayConfig, needs: Iterable[TrialNeed]) -> int:
    """Returns the most concurrent trials that the configuration allows; 0 for no limit.

    Args:
        config: ray.max_concurrent and ray.max_gpus.
        needs: of the trials; all may be as large as the largest.

    Raises:
        ValueError: if not one trial is allowed.
    """
    limits = [config.max_concurrent] if config.max_concurrent else []
    largest = max((need.gpus for need in needs), default=0.0)
    if config.max_gpus and largest:
        limits.append(int(config.max_gpus / largest + 1e-9))
        if not limits[-1]:
            raise ValueError(
                f"ray.max_gpus must be at least the GPUs of the largest trial, {largest:g}. Got "
                f"{config.max_gpus:g}."
            )
    return min(limits, default=0)


def _count_requested() -> int:
    # What an autoscaler does is shown and decides nothing; its two versions report it differently.
    with contextlib.suppress(Exception):
        from ray.autoscaler.v2.utils import is_autoscaler_v2

        return _count_for_v2() if is_autoscaler_v2() else _count_for_v1()
    return 0


def _count_for_v2() -> int:
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    return sum(launch.count for launch in status.pending_launches) + len(status.pending_nodes)


def _count_for_v1() -> int:
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.experimental.internal_kv import _internal_kv_get

    report = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS))["autoscaler_report"]
    return sum(report["pending_launches"].values()) + len(report["pending_nodes"])
