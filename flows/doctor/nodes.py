"""The machines of a cluster: each node gathers its facts, and the driver judges them."""

import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dml_core.config.pipeline import RayConfig
from flows.doctor.data import DataFacts, folder_on_node, inspect_data
from flows.doctor.environment import find_version
from flows.doctor.probes import Finding, broken, in_units, nearest_folder, ok, warning

TEMPORARY = "temporary files"
"""Stands for the folder of temporary files, whose path differs between nodes."""
COMPARED = ("ray", "torch", "torchvision", "timm", "numpy", "scikit-learn", "faiss-cpu", "dvc")
"""Packages whose version must equal the driver's: they compute or carry the results."""
CLOCK_WARNING_SECONDS = 2.0
CLOCK_BROKEN_SECONDS = 60.0
"""Stores refuse requests with a clock that is minutes off, and times in records get mixed up."""
SMALLEST_SHARED_MEMORY = 256 * 1024**2
_SMI = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.free",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True)
class NodeFacts:
    """One machine, at one moment."""

    name: str
    """Its address in the cluster."""
    python: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages in COMPARED; empty if one is missing."""
    gpus: tuple[str, ...] = ()
    """Names of the devices, from nvidia-smi."""
    driver: str = ""
    """Version of NVIDIA's driver; empty if there is none."""
    has_cuda: bool | None = None
    """Whether torch can use a GPU; None if not checked."""
    free_disk: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each folder the free and total bytes of its disk."""
    free_memory: int = 0
    free_shared_memory: int = 0
    """Of /dev/shm, where Ray keeps its objects."""
    data: tuple[DataFacts, ...] = ()
    num_cpus: float = 0.0
    """As the cluster counts them."""
    num_gpus: float = 0.0
    clock_offset_seconds: float = 0.0
    """How far its clock is ahead of the driver's."""
    clock_error_seconds: float = 0.0
    """Error of the offset: half the round trip."""


def gather(order: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of the machine that this runs on.

    Args:
        order: `name` of the node; `folders` to measure; `datasets`, paths as configured;
            `working_folder` of the driver; `fetched`, see `folder_on_node`; `seconds` for hashing;
            `wants_gpu`, whether to check torch.
    """
    import psutil

    gpus, driver = find_gpus()
    facts = NodeFacts(
        name=order["name"],
        python=platform.python_version(),
        versions={name: find_version(name) for name in COMPARED},
        gpus=gpus,
        driver=driver,
        has_cuda=_has_cuda() if order["wants_gpu"] or gpus else None,
        free_disk=_measure_disks(order["folders"], order["working_folder"]),
        free_memory=psutil.virtual_memory().available,
        free_shared_memory=_free("/dev/shm"),  # noqa: S108
        data=tuple(_inspect_all(order)),
    )
    return asdict(facts)


def gather_here(*, folders: Sequence[str] = (), wants_gpu: bool = False) -> NodeFacts:
    """Returns the facts of this machine, without those of its data."""
    order: dict[str, Any] = {
        "name": "this machine",
        "folders": list(folders),
        "datasets": [],
        "fetched": {},
        "working_folder": str(Path.cwd()),
        "seconds": 0.0,
        "wants_gpu": wants_gpu,
    }
    return from_plain(gather(order))


def from_plain(plain: Mapping[str, Any], **more: Any) -> NodeFacts:
    """Returns facts from the result of `gather`, with the values that the driver knows."""
    data = tuple(DataFacts(**entry) for entry in plain["data"])
    return NodeFacts(**{**plain, "data": data, "gpus": tuple(plain["gpus"]), **more})


def read_clock() -> float:
    """Returns the time of the machine that this runs on."""
    return time.time()


def find_gpus() -> tuple[tuple[str, ...], str]:
    """Returns the names of the GPUs and the version of their driver, from nvidia-smi."""
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return (), ""
    lines = [line.split(", ") for line in done.stdout.strip().splitlines() if line.strip()]
    return tuple(line[0] for line in lines), lines[0][1] if lines else ""


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
    """Checks that the nodes have room for a trial, and counts concurrent ones."""
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
    """Returns how many trials can run on a node concurrently."""
    rooms = [node.num_cpus / config.cpus_per_trial]
    if config.gpus_per_trial:
        rooms.append(node.num_gpus / config.gpus_per_trial)
    return int(min(rooms) + 1e-9)


def judge_gpu(node: NodeFacts, *, wants_gpu: bool) -> Finding:
    """Checks that torch can use the GPUs of a node."""
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
    return ok("gpu", f"{node.name}: {found}" + ("" if node.gpus else ", and none is requested"))


def judge_clock(
    where: str, offset_seconds: float, *, error_seconds: float, limit_seconds: float
) -> Finding:
    """Compares another clock with this machine's, beyond the error of the measurement.

    Args:
        where: whose clock it is.
        offset_seconds: how far it is ahead.
        error_seconds: of the measurement.
        limit_seconds: a larger offset is a problem, above CLOCK_BROKEN_SECONDS a broken clock.
    """
    off = max(0.0, abs(offset_seconds) - error_seconds)
    way = "ahead of" if offset_seconds > 0 else "behind"
    if off <= limit_seconds:
        return ok("clock", f"{where} agrees with this machine's clock")
    state = broken if off > CLOCK_BROKEN_SECONDS else warning
    return state(
        "clock",
        f"the clock of {where} is {off:,.1f} s {way} this machine's",
        "Let both follow a time server: timedatectl set-ntp true (or chronyd)",
    )


def judge_node_clock(node: NodeFacts) -> Finding:
    """Compares a node's clock with this machine's."""
    return judge_clock(
        f"node {node.name}",
        node.clock_offset_seconds,
        error_seconds=node.clock_error_seconds,
        limit_seconds=CLOCK_WARNING_SECONDS,
    )


def judge_shared_memory(node: NodeFacts) -> Finding:
    """Checks that Ray's objects fit into shared memory."""
    if node.free_shared_memory >= SMALLEST_SHARED_MEMORY:
        return ok("memory", f"{in_units(node.free_shared_memory)} of /dev/shm on {node.name}")
    return warning(
        "memory",
        f"/dev/shm on {node.name} has {in_units(node.free_shared_memory)} free, so that Ray keeps "  # noqa: S108
        "its objects on the disk",
        "Start the container with --shm-size=2g, or mount a larger tmpfs at /dev/shm",
    )


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _measure_disks(folders: list[str], working_folder: str) -> dict[str, tuple[int, int]]:
    wanted = [str(Path(working_folder) / Path(name).expanduser()) for name in folders]
    return {**{name: _measure(name) for name in wanted}, TEMPORARY: _measure(tempfile.gettempdir())}


def _measure(name: str) -> tuple[int, int]:
    """Returns the free and total bytes of the disk of a folder, which need not exist."""
    usage = shutil.disk_usage(nearest_folder(Path(name)))
    return usage.free, usage.total


def _free(folder: str) -> int:
    return shutil.disk_usage(folder).free if os.path.isdir(folder) else 0


def _inspect_all(order: Mapping[str, Any]) -> list[DataFacts]:
    folders = [
        folder_on_node(Path(path), order["working_folder"], order["fetched"])
        for path in order["datasets"]
    ]
    seconds = order["seconds"] / max(1, len(folders))
    return [
        inspect_data(folder, seconds=seconds, development_only=bool(order["fetched"]))
        for folder in folders
    ]
