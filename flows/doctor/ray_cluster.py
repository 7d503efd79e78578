"""The Ray cluster: reachable, and its nodes fit for the plan."""

from typing import TYPE_CHECKING

from dml_core.config.pipeline import RayConfig
from flows.doctor.data import judge_node
from flows.doctor.findings import Finding, broken, warning
from flows.doctor.needs import estimate_needs
from flows.doctor.node_facts import NodeFacts
from flows.doctor.nodes import (
    count_room,
    judge_clock,
    judge_gpu,
    judge_room,
    judge_shared_memory,
    judge_versions,
)
from flows.doctor.request import DoctorRequest
from flows.doctor.space import judge_fullness, judge_memory
from flows.doctor.token_file import check_token
from tasks.study import StudyContext, load_context

if TYPE_CHECKING:
    from flows.doctor.ray_asking import Asked

UNREACHABLE = (
    "Start it with `ray start --head`, correct ray.address, let RAY_AUTH_TOKEN_PATH name the "
    "cluster's token file, or use --set ray.address=local"
)


def probe(request: DoctorRequest) -> list[Finding]:
    """Joins the cluster and asks every node; with ray.address=local looks at this machine."""
    context = load_context(request.study)
    config = context.project.pipeline.ray
    if config.address == "local":
        from flows.doctor.ray_local import check_local

        return check_local(config)
    from flows.doctor.ray_asking import ask_nodes
    from tasks.sweep.cluster import RayUnreachable

    try:
        asked = ask_nodes(context, seconds=request.timeout_seconds)
    except RayUnreachable as error:
        message = str(error).partition(". Start it with")[0]
        return [check_token(), broken("ray", message, UNREACHABLE)]
    return [check_token(), *judge_cluster(context, asked)]


def judge_cluster(context: StudyContext, asked: "Asked") -> list[Finding]:
    """Tells what the nodes' facts mean for the plan."""
    config = context.project.pipeline.ray
    findings = [judge_room(asked.nodes, config) if asked.nodes else _tell_empty(config)]
    findings += [
        broken(
            "ray",
            f"node {name} did not answer: {problem}",
            "Look at that node's Ray (ray status; /tmp/ray/session_latest/logs there), and start "
            "it again",
        )
        for name, problem in asked.problems.items()
    ]
    needs = estimate_needs(context)
    for node in asked.nodes:
        at_once = count_room(node, config)
        findings += _judge_machine(node, asked.driver, config)
        # A node without room for a trial, as a head often is, needs neither data nor memory.
        if at_once:
            findings.append(judge_memory(node, needs, at_once=at_once))
            findings += _judge_data(node, asked, mode=context.project.pipeline.data_access.mode)
    return findings


def _judge_machine(node: NodeFacts, driver: NodeFacts, config: RayConfig) -> list[Finding]:
    wants_gpu = config.gpus_per_trial > 0
    return [
        judge_versions(driver, node),
        judge_gpu(node, wants_gpu=wants_gpu),
        judge_clock(node),
        judge_fullness(node),
        judge_shared_memory(node),
    ]


def _judge_data(node: NodeFacts, asked: "Asked", *, mode: str) -> list[Finding]:
    free = min((free for free, _ in node.free_disk.values()), default=0)
    return [
        judge_node(node.name, facts, expected=expected, mode=mode, free_bytes=free)
        for facts, expected in zip(node.data, asked.versions, strict=True)
        # Without data here there is nothing to compare with; the driver prepares them first.
        if expected
    ]


def _tell_empty(config: RayConfig) -> Finding:
    return warning(
        "ray",
        f"the cluster at {config.address} answers, and has no node at this moment",
        "Start nodes with `ray start --address=...`; with autoscaling they come with the trials",
    )
