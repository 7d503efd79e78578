"""What a node says of itself: gathered there, as plain values, and judged by the driver."""

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

from flows.doctor.data import folder_on_node
from flows.doctor.data_facts import DataFacts, look_at_data
from flows.doctor.environment import find_version

TEMPORARY = "temporary files"
"""Stands among the folders for that of temporary files, which each node has where it likes."""
COMPARED = ("ray", "torch", "torchvision", "timm", "numpy", "scikit-learn", "faiss-cpu", "dvc")
"""Packages whose version must be the driver's: they compute, or carry what was computed."""
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
    """Of the packages of COMPARED; empty where one is missing."""
    gpus: tuple[str, ...] = ()
    """Names of the devices that the driver shows."""
    driver: str = ""
    """Version of NVIDIA's driver; empty where there is none."""
    has_cuda: bool | None = None
    """Whether torch can use a GPU; None where nobody asked."""
    free_disk: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each folder the free and all bytes of its disk."""
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
    """How wrong the offset may be, by the way there and back."""


def gather(order: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of the machine that this runs on.

    Args:
        order: `name` of the node; `folders` whose disks matter; `datasets`, paths as configured;
            `working_folder` of the driver; `fetched`, see `folder_on_node`; `seconds` for hashing;
            `wants_gpu`, whether torch is asked.
    """
    import psutil

    gpus, driver = find_gpus()
    facts = NodeFacts(
        name=order["name"],
        python=platform.python_version(),
        versions={name: find_version(name) for name in COMPARED},
        gpus=gpus,
        driver=driver,
        has_cuda=_ask_torch() if order["wants_gpu"] or gpus else None,
        free_disk=_measure_disks(order["folders"], order["working_folder"]),
        free_memory=psutil.virtual_memory().available,
        free_shared_memory=_free("/dev/shm"),  # noqa: S108
        data=tuple(_look_at_all(order)),
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
    """Returns facts from what `gather` returned, with what the driver knows of the node."""
    data = tuple(DataFacts(**entry) for entry in plain["data"])
    return NodeFacts(**{**plain, "data": data, "gpus": tuple(plain["gpus"]), **more})


def read_clock() -> float:
    """Returns the time of the machine that this runs on."""
    return time.time()


def find_gpus() -> tuple[tuple[str, ...], str]:
    """Returns the names of the GPUs and the version of their driver, as nvidia-smi tells them."""
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return (), ""
    lines = [line.split(", ") for line in done.stdout.strip().splitlines() if line.strip()]
    return tuple(line[0] for line in lines), lines[0][1] if lines else ""


def _ask_torch() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _measure_disks(folders: list[str], working_folder: str) -> dict[str, tuple[int, int]]:
    wanted = [str(Path(working_folder) / Path(name).expanduser()) for name in folders]
    return {**{name: _measure(name) for name in wanted}, TEMPORARY: _measure(tempfile.gettempdir())}


def _measure(name: str) -> tuple[int, int]:
    """Free and all bytes of the disk that a folder is on, or would be on."""
    path = Path(name)
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


def _free(folder: str) -> int:
    return shutil.disk_usage(folder).free if os.path.isdir(folder) else 0


def _look_at_all(order: Mapping[str, Any]) -> list[DataFacts]:
    folders = [
        folder_on_node(Path(path), order["working_folder"], order["fetched"])
        for path in order["datasets"]
    ]
    seconds = order["seconds"] / max(1, len(folders))
    return [
        look_at_data(folder, seconds=seconds, development_only=bool(order["fetched"]))
        for folder in folders
    ]
