"""The Ray cluster: its token, its nodes, and whether they are fit for the plan."""

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.pipeline import RayConfig
from dml_core.data.parallel import count_cores
from dml_core.data.records import DatasetError
from flows.doctor.data import HASHING_SHARE, judge_node
from flows.doctor.nodes import (
    NodeFacts,
    count_room,
    from_plain,
    gather,
    gather_here,
    judge_gpu,
    judge_node_clock,
    judge_room,
    judge_shared_memory,
    judge_versions,
    read_clock,
)
from flows.doctor.probes import DoctorRequest, Finding, broken, first_line, ok, warning
from flows.doctor.space import estimate_needs, judge_fullness, judge_memory, list_folders
from tasks.study import StudyContext, load_context
from tasks.sweep.node_data import describe_data, remember_sources

DEFAULT_TOKEN_PATH = Path("~/.ray/auth_token")
UNREACHABLE = (
    "Start it with `ray start --head`, correct ray.address, let RAY_AUTH_TOKEN_PATH name the "
    "cluster's token file, or use --set ray.address=local"
)
_CONNECT_SHARE = 0.3
_CLOCK_READINGS = 3


@dataclass(frozen=True)
class ClusterFacts:
    """The facts of a cluster's nodes."""

    driver: NodeFacts
    nodes: list[NodeFacts]
    problems: dict[str, str]
    """For each node that did not answer, the reason."""
    versions: list[str]
    """Of each dataset on this machine, in the order of the nodes' data."""


def probe(request: DoctorRequest) -> list[Finding]:
    """Joins the cluster and asks every node; with ray.address=local checks this machine."""
    context = load_context(request.study)
    config = context.project.pipeline.ray
    if config.address == "local":
        here = gather_here(wants_gpu=config.gpus_per_trial > 0)
        return judge_local(here, config, num_cores=count_cores())
    from tasks.sweep.cluster import RayUnreachable

    try:
        facts = ask_nodes(context, seconds=request.timeout_seconds)
    except RayUnreachable as error:
        message = str(error).partition(". Start it with")[0]
        return [check_token(), broken("ray", message, UNREACHABLE)]
    return [check_token(), *judge_cluster(context, facts)]


def check_token(environment: Mapping[str, str] = os.environ) -> Finding:
    """Checks that the cluster's token is there, and that only its owner can read it."""
    if environment.get("RAY_AUTH_TOKEN"):
        return ok("ray", "the token comes from RAY_AUTH_TOKEN")
    named = environment.get("RAY_AUTH_TOKEN_PATH", "")
    path = Path(named or DEFAULT_TOKEN_PATH).expanduser()
    if not path.is_file() or not path.stat().st_size:
        return _report_missing_token(path, is_named=bool(named))
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return broken(
            "ray",
            f"others than its owner may read {path}, and with the token run programs on the "
            "cluster",
            f"Run: chmod 600 {path}. If others have an account here, make a new token too",
        )
    return ok("ray", f"the token is in {path}, for its owner alone")


def _report_missing_token(path: Path, *, is_named: bool) -> Finding:
    if is_named:
        return broken(
            "ray",
            f"RAY_AUTH_TOKEN_PATH names {path}, which is missing or empty",
            "Copy the cluster's token there (chmod 600), or unset RAY_AUTH_TOKEN_PATH",
        )
    return warning(
        "ray",
        "there is no token: neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH is set, and there is no "
        f"{path}",
        "Let RAY_AUTH_TOKEN_PATH name the cluster's token file. A cluster without one lets "
        "everyone run programs on it: start it with RAY_AUTH_MODE=token",
    )


def judge_cluster(context: StudyContext, facts: ClusterFacts) -> list[Finding]:
    """Judges the facts of all nodes for the plan."""
    config = context.project.pipeline.ray
    findings = [judge_room(facts.nodes, config) if facts.nodes else _report_empty(config)]
    findings += [
        broken(
            "ray",
            f"node {name} did not answer: {problem}",
            "Look at that node's Ray (ray status; /tmp/ray/session_latest/logs there), and start "
            "it again",
        )
        for name, problem in facts.problems.items()
    ]
    needs = estimate_needs(context)
    for node in facts.nodes:
        at_once = count_room(node, config)
        findings += _judge_machine(node, facts.driver, config)
        # A node without room for a trial, often the head, needs neither data nor memory.
        if at_once:
            findings.append(judge_memory(node, needs, at_once=at_once))
            findings += _judge_data(node, facts, mode=context.project.pipeline.data_access.mode)
    return findings


def _judge_machine(node: NodeFacts, driver: NodeFacts, config: RayConfig) -> list[Finding]:
    wants_gpu = config.gpus_per_trial > 0
    return [
        judge_versions(driver, node),
        judge_gpu(node, wants_gpu=wants_gpu),
        judge_node_clock(node),
        judge_fullness(node),
        judge_shared_memory(node),
    ]


def _judge_data(node: NodeFacts, cluster: ClusterFacts, *, mode: str) -> list[Finding]:
    free = min((free for free, _ in node.free_disk.values()), default=0)
    return [
        judge_node(node.name, facts, expected=expected, mode=mode, free_bytes=free)
        for facts, expected in zip(node.data, cluster.versions, strict=True)
        # Without data here there is nothing to compare with; a run prepares them first.
        if expected
    ]


def _report_empty(config: RayConfig) -> Finding:
    return warning(
        "ray",
        f"the cluster at {config.address} answers, and has no node at this moment",
        "Start nodes with `ray start --address=...`; with autoscaling they come with the trials",
    )


def judge_local(facts: NodeFacts, config: RayConfig, *, num_cores: int) -> list[Finding]:
    """Judges this machine for a local cluster, which is not started."""
    findings = [
        ok("ray", "ray.address=local: no cluster to reach, a run starts its own on this machine"),
        _judge_cores(config, num_cores),
        judge_shared_memory(facts),
    ]
    if config.gpus_per_trial > len(facts.gpus):
        findings.append(
            broken(
                "gpu",
                f"ray.gpus_per_trial={config.gpus_per_trial:g}, and this machine has "
                f"{len(facts.gpus)} GPU(s): no trial would ever start",
                "Use --set ray.gpus_per_trial=0, or let ray.address name a cluster with GPUs",
            )
        )
    else:
        findings.append(judge_gpu(facts, wants_gpu=config.gpus_per_trial > 0))
    return findings


def _judge_cores(config: RayConfig, num_cores: int) -> Finding:
    if config.cpus_per_trial > num_cores:
        return warning(
            "ray",
            f"ray.cpus_per_trial={config.cpus_per_trial:g} on {num_cores} core(s): one trial runs "
            "at a time, slower than it expects",
            "Lower ray.cpus_per_trial",
        )
    at_once = int(num_cores / config.cpus_per_trial)
    return ok("ray", f"{num_cores} core(s), room for {at_once} trial(s) at once")


def ask_nodes(context: StudyContext, *, seconds: float) -> ClusterFacts:
    """Joins the cluster, asks all nodes concurrently for their facts, and leaves it.

    Raises:
        RayUnreachable: if it cannot be joined.
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
    return ClusterFacts(driver, nodes, problems, versions)


def _make_order(context: StudyContext, *, seconds: float) -> dict[str, Any]:
    pipeline = context.project.pipeline
    return {
        "folders": list_folders(context),
        "datasets": [str(data.prepared_path) for data in context.datasets],
        "fetched": _find_fetched(context),
        "working_folder": str(Path.cwd()),
        "seconds": seconds,
        "wants_gpu": pipeline.ray.gpus_per_trial > 0,
    }


def _find_fetched(context: StudyContext) -> dict[str, str]:
    """Returns the folders of fetched data on nodes; empty if they share the driver's folder."""
    access = context.project.pipeline.data_access
    if access.mode == "shared":
        return {}
    find, folders = remember_sources(access), {}
    for data in context.datasets:
        path = str(data.prepared_path)
        try:
            source = find(_config_of(context, path))["source"]
        except ValueError:
            # No remote, or no version in it; the subject dvc reports the problem.
            continue
        version = str(source["md5"]).removesuffix(".dir")
        folders[path] = str(Path(access.cache_root) / "prepared" / version / source["name"])
    return folders


def _describe_here(config: TrialConfig) -> str:
    try:
        return describe_data(config)
    except DatasetError:
        # The subject data reports the problem.
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
    # The task requests no CPU, so that busy nodes answer too.
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
    """Returns the offset of a node's clock, from the reading with the shortest round trip."""
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
