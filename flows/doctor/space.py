"""Free disk and memory, against what the plan needs."""

from pathlib import Path

from dml_core.data.parallel import count_cores
from flows.doctor.findings import Finding, broken, in_units, ok, warning
from flows.doctor.needs import PlanNeeds, estimate_needs
from flows.doctor.node_facts import TEMPORARY, NodeFacts, gather_here
from flows.doctor.request import DoctorRequest
from tasks.study import StudyContext, load_context

FULL_FRACTION = 0.95
"""Ray starts nothing new on a disk that is fuller."""


def probe(request: DoctorRequest) -> list[Finding]:
    """Looks at this machine's disks and memory."""
    context = load_context(request.study)
    facts = gather_here(folders=disks(context))
    needs = estimate_needs(context)
    results = str(Path.cwd() / context.project.pipeline.sweep.results_root)
    findings = [judge_disk(facts, needs, folder=results), judge_fullness(facts)]
    config = context.project.pipeline.ray
    if config.address == "local":
        at_once = max(1, int(count_cores() / config.cpus_per_trial))
        at_once = min(at_once, config.max_concurrent or at_once)
        findings.append(judge_memory(facts, needs, at_once=at_once))
    return findings


def disks(context: StudyContext) -> list[str]:
    """Returns the folders that the plan writes to."""
    pipeline = context.project.pipeline
    data = [str(data.prepared_path) for data in context.datasets]
    fetched = [pipeline.data_access.cache_root] if pipeline.data_access.mode == "dvc" else []
    return [pipeline.sweep.results_root, *data, *fetched]


def judge_disk(node: NodeFacts, needs: PlanNeeds, *, folder: str) -> Finding:
    """Tells whether what the plan writes has room."""
    free, _ = node.free_disk[folder]
    plan = (
        f"the plan writes up to {in_units(needs.disk_bytes)} ({needs.num_trained} trials, "
        f"checkpoints of {in_units(needs.checkpoint_bytes)}, data {in_units(needs.data_bytes)})"
    )
    message = f"{plan}, and {in_units(free)} are free at {folder}"
    remedy = (
        "Free some, let sweep.results_root name a larger disk, or lower "
        "training.keep_checkpoints or the study's trials"
    )
    if free < needs.disk_bytes:
        return broken("disk", message, remedy)
    if free < 2 * needs.disk_bytes:
        return warning("disk", message, remedy)
    return ok("disk", message)


def judge_fullness(node: NodeFacts) -> Finding:
    """Tells whether Ray would work on the disk with the temporary files."""
    free, total = node.free_disk[TEMPORARY]
    used = 1 - free / total
    message = f"the disk of temporary files on {node.name} is {used:.0%} full"
    if used > FULL_FRACTION:
        return broken(
            "disk",
            f"{message}, and above {FULL_FRACTION:.0%} Ray starts no trial",
            "Remove old files there, or let TMPDIR or RAY_TMPDIR name another disk",
        )
    return ok("disk", f"{message}, {in_units(free)} are free")


def judge_memory(node: NodeFacts, needs: PlanNeeds, *, at_once: int) -> Finding:
    """Tells whether the trials that run at once have room in memory."""
    wanted = at_once * needs.memory_bytes
    message = (
        f"{at_once} trial(s) at once need {in_units(wanted)} at the least, and "
        f"{in_units(node.free_memory)} are free on {node.name}"
    )
    remedy = "Lower ray.max_concurrent or raise ray.cpus_per_trial, or end what takes memory there"
    if node.free_memory < needs.memory_bytes:
        return broken("memory", message, remedy)
    if node.free_memory < wanted:
        return warning("memory", message, remedy)
    return ok("memory", message)
