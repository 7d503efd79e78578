"""What the facts of a cluster's nodes mean: their versions, room for trials, GPUs and clocks."""

from collections.abc import Sequence

from dml_core.config.pipeline import RayConfig
from flows.doctor.findings import Finding, broken, in_units, ok, warning
from flows.doctor.node_facts import NodeFacts

CLOCK_WARNING_SECONDS = 2.0
CLOCK_BROKEN_SECONDS = 60.0
"""Stores refuse requests whose clock is off by some minutes, and times in records get mixed up."""
SMALLEST_SHARED_MEMORY = 256 * 1024**2


def judge_versions(driver: NodeFacts, node: NodeFacts) -> Finding:
    """Compares a node's Python and packages with the driver's."""
    pairs = [("Python", driver.python, node.python)]
    pairs += [
        (name, wanted, node.versions.get(name, "")) for name, wanted in driver.versions.items()
    ]
    wrong = [
        f"{name} {found or 'is missing'} (here {wanted or 'missing'})"
        for name, wanted, found in pairs
        if found != wanted
    ]
    if wrong:
        return broken(
            "ray",
            f"node {node.name} has other versions than this machine: {', '.join(wrong)}",
            "Install requirements.lock on that node, and start its Ray again",
        )
    return ok("ray", f"node {node.name} has the same Python {node.python} and packages")


def judge_room(nodes: Sequence[NodeFacts], config: RayConfig) -> Finding:
    """Tells how many trials the nodes have room for at once."""
    rooms = {node.name: count_room(node, config) for node in nodes}
    cpus, gpus = sum(n.num_cpus for n in nodes), sum(n.num_gpus for n in nodes)
    there = f"{len(nodes)} node(s) with {cpus:g} CPUs and {gpus:g} GPUs"
    cpu, gpu = config.cpus_per_trial, config.gpus_per_trial
    trial = f"ray.cpus_per_trial={cpu:g}, ray.gpus_per_trial={gpu:g}"
    if not sum(rooms.values()):
        return broken(
            "ray",
            f"{there}, and none has room for one trial of {trial}: none would ever start",
            "Lower these two, or add a node that has as much",
        )
    return ok("ray", f"{there}, room for {sum(rooms.values())} trial(s) at once ({trial})")


def count_room(node: NodeFacts, config: RayConfig) -> int:
    """Returns how many trials a node has room for at once."""
    rooms = [node.num_cpus / config.cpus_per_trial]
    if config.gpus_per_trial:
        rooms.append(node.num_gpus / config.gpus_per_trial)
    return int(min(rooms) + 1e-9)


def judge_gpu(node: NodeFacts, *, wants_gpu: bool) -> Finding:
    """Tells whether torch can use the GPUs that a node has, or should have."""
    found = f"{len(node.gpus)} x {node.gpus[0]}, driver {node.driver}" if node.gpus else "no GPU"
    if node.gpus and node.has_cuda is False:
        return broken(
            "gpu",
            f"{node.name} has {found}, but torch {node.versions.get('torch', '')} cannot use it",
            "Update NVIDIA's driver to one that torch's CUDA needs, start containers with the GPUs "
            "(--gpus all), and look at CUDA_VISIBLE_DEVICES",
        )
    if node.num_gpus and not node.gpus and wants_gpu:
        return broken(
            "gpu",
            f"{node.name} joined with {node.num_gpus:g} GPU(s), and nvidia-smi finds none there",
            "Install NVIDIA's driver there, or start that node without --num-gpus",
        )
    if node.gpus and not wants_gpu:
        return warning(
            "gpu",
            f"{node.name} has {found}, and ray.gpus_per_trial=0 gives trials none",
            "Use it with --set ray.gpus_per_trial=1, or leave it so for the CPU",
        )
    return ok("gpu", f"{node.name}: {found}" + ("" if node.gpus else ", and none is asked for"))


def judge_clock(node: NodeFacts) -> Finding:
    """Tells how far a node's clock is off, beyond what the measurement may be wrong by."""
    ahead = node.clock_offset_seconds
    off = max(0.0, abs(ahead) - node.clock_error_seconds)
    way = "ahead of" if ahead > 0 else "behind"
    if off <= CLOCK_WARNING_SECONDS:
        return ok("clock", f"node {node.name} is with this machine's clock")
    state = broken if off > CLOCK_BROKEN_SECONDS else warning
    return state(
        "clock",
        f"the clock of node {node.name} is {off:,.1f} s {way} this machine's",
        "Let both follow a time server: timedatectl set-ntp true (or chronyd)",
    )


def judge_shared_memory(node: NodeFacts) -> Finding:
    """Tells whether Ray's objects have room in memory."""
    if node.free_shared_memory >= SMALLEST_SHARED_MEMORY:
        return ok("memory", f"{in_units(node.free_shared_memory)} of /dev/shm on {node.name}")
    return warning(
        "memory",
        f"/dev/shm on {node.name} has {in_units(node.free_shared_memory)} free, so that Ray keeps "  # noqa: S108
        "its objects on the disk",
        "Start the container with --shm-size=2g, or mount a larger tmpfs at /dev/shm",
    )
