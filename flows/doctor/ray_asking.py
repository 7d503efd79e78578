"""Asks every node of a Ray cluster for its facts, all at once and for a limited time."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.data.records import DatasetError
from flows.doctor.data import HASHING_SHARE
from flows.doctor.findings import first_line
from flows.doctor.node_facts import NodeFacts, from_plain, gather, gather_here, read_clock
from flows.doctor.space import disks
from tasks.study import StudyContext
from tasks.sweep.node_data import describe_data, remember_sources

_CONNECT_SHARE = 0.3
_CLOCK_READINGS = 3


@dataclass(frozen=True)
class Asked:
    """What came back from a cluster."""

    driver: NodeFacts
    nodes: list[NodeFacts]
    problems: dict[str, str]
    """For each node that did not answer, why."""
    versions: list[str]
    """Of each dataset on this machine, in the order of the nodes' data."""


def ask_nodes(context: StudyContext, *, seconds: float) -> Asked:
    """Joins the cluster, asks all nodes and leaves it.

    Raises:
        RayUnreachable: when it cannot be joined.
    """
    from tasks.sweep.cluster import connect

    config = context.project.pipeline.ray
    deadline = time.monotonic() + seconds
    limit = min(config.connect_timeout_seconds, seconds * _CONNECT_SHARE)
    order = _make_order(context, seconds=seconds * HASHING_SHARE / 2)
    with connect(config.model_copy(update={"connect_timeout_seconds": limit})):
        plain, problems, clocks = _ask(order, deadline=deadline)
        nodes = [from_plain(facts, **clocks[name]) for name, facts in plain.items()]
    driver = gather_here()
    versions = [_describe_here(_config_of(context, path)) for path in order["datasets"]]
    return Asked(driver, nodes, problems, versions)


def _make_order(context: StudyContext, *, seconds: float) -> dict[str, Any]:
    pipeline = context.project.pipeline
    return {
        "folders": disks(context),
        "datasets": [str(data.prepared_path) for data in context.datasets],
        "fetched": _find_fetched(context),
        "working_folder": str(Path.cwd()),
        "seconds": seconds,
        "wants_gpu": pipeline.ray.gpus_per_trial > 0,
    }


def _find_fetched(context: StudyContext) -> dict[str, str]:
    """Where nodes keep what they fetched; empty where they share the driver's folder."""
    access = context.project.pipeline.data_access
    if access.mode == "shared":
        return {}
    find, folders = remember_sources(access), {}
    for data in context.datasets:
        path = str(data.prepared_path)
        try:
            source = find(_config_of(context, path))["source"]
        except ValueError:
            # No remote, or no version of it: what is wrong there the subject dvc tells.
            continue
        version = str(source["md5"]).removesuffix(".dir")
        folders[path] = str(Path(access.cache_root) / "prepared" / version / source["name"])
    return folders


def _describe_here(config: TrialConfig) -> str:
    try:
        return describe_data(config)
    except DatasetError:
        # The subject data tells what is wrong with it.
        return ""


def _config_of(context: StudyContext, path: str) -> TrialConfig:
    configs = [context.study.arm_config(arm.name) for arm in context.study.arms]
    return next(config for config in configs if str(config.data.prepared_path) == path)


def _ask(
    order: dict[str, Any], *, deadline: float
) -> tuple[dict[str, Any], dict[str, str], dict[str, dict[str, float]]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    living = [node for node in ray.nodes() if node["Alive"]]
    places = {
        node["NodeManagerAddress"] + f" ({node['NodeID'][:6]})": (
            NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            node["Resources"],
        )
        for node in living
    }
    # No CPU is asked for, so that busy nodes answer too.
    task: Any = ray.remote(num_cpus=0, max_retries=0)(gather)
    sent = {
        name: task.options(scheduling_strategy=place).remote({**order, "name": name})
        for name, (place, _) in places.items()
    }
    plain: dict[str, Any] = {}
    problems: dict[str, str] = {}
    known: dict[str, dict[str, float]] = {}
    for name, (place, resources) in places.items():
        try:
            plain[name] = ray.get(sent[name], timeout=max(0.1, deadline - time.monotonic()))
            known[name] = _read_clock(place, deadline=deadline)
        except Exception as error:
            plain.pop(name, None)
            problems[name] = first_line(error)
            continue
        known[name]["num_cpus"] = float(resources.get("CPU", 0))
        known[name]["num_gpus"] = float(resources.get("GPU", 0))
    return plain, problems, known


def _read_clock(place: Any, *, deadline: float) -> dict[str, float]:
    """The offset of a node's clock: of several readings, the one with the shortest way."""
    import ray

    task: Any = ray.remote(num_cpus=0, max_retries=0)(read_clock)
    best = {"clock_offset_seconds": 0.0, "clock_error_seconds": float("inf")}
    for _ in range(_CLOCK_READINGS):
        before = time.time()
        reference = task.options(scheduling_strategy=place).remote()
        there = float(ray.get(reference, timeout=max(0.1, deadline - time.monotonic())))
        after = time.time()
        error = (after - before) / 2
        if error < best["clock_error_seconds"]:
            offset = there - (before + after) / 2
            best = {"clock_offset_seconds": offset, "clock_error_seconds": error}
    return best
