"""Reads and packs images on all nodes of a cluster that reach the raw data."""

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from dml_core.config.pipeline import RayConfig
from dml_core.data.packing import UNREADABLE, PackedImage
from dml_core.data.parallel import map_in_order
from dml_core.data.records import ImageRecord
from tasks.sweep.cluster import RayUnreachable, connect
from tasks.sweep.ray_map import map_on_ray

LOGGER = logging.getLogger(__name__)
FEW_IMAGES = 2_000
"""Fewer images are packed before the workers of other nodes have started."""
_NUM_PROBES = 16
_DECODERS = ("numpy", "pillow")
"""Packages that decide the pixels of a decoded image."""

Pack = Callable[[ImageRecord], PackedImage]


def pack_on_nodes(
    pack: Pack, records: Sequence[ImageRecord], *, workers: int, chunk_size: int, config: RayConfig
) -> Generator[PackedImage, None, None]:
    """Yields the packed image of each record, in order; any cluster gives the same bytes.

    The nodes of a joined cluster do the work if all of them reach the images; otherwise this
    machine does it, after a message with the reason.

    Args:
        pack: packs one record.
        records: with files.
        workers: processes of this machine, where it does the work.
        chunk_size: records of a task.
        config: the cluster.
    """
    if config.address == "local" or len(records) < FEW_IMAGES:
        yield from map_in_order(pack, records, workers=workers, chunk_size=chunk_size)
        return
    # Reading needs no GPU, so all nodes take part.
    one_core = config.model_copy(update={"cpus_per_trial": 1.0, "gpus_per_trial": 0.0})
    try:
        with connect(one_core):
            _check_nodes(records)
            yield from _pack_there(pack, records, chunk_size, one_core)
    except (RayUnreachable, NotReachable) as reason:
        LOGGER.warning("the images are packed on this machine alone: %s", reason)
        yield from map_in_order(pack, records, workers=workers, chunk_size=chunk_size)


class NotReachable(ValueError):
    """A node cannot pack the images as this machine does; the message names it and the reason."""


@dataclass(frozen=True)
class Probe:
    """Some files with their sizes, and the versions of the decoders."""

    working_folder: str
    sizes: dict[str, int]
    versions: dict[str, str]


def find_problem(probe: Probe) -> str:
    """Returns why this node cannot pack the images; empty if it can."""
    _enter(probe.working_folder)
    for path, size in probe.sizes.items():
        try:
            found = os.stat(path).st_size
        except OSError as error:
            return f"cannot read {path}: {error.strerror}"
        if found != size:
            return f"has another {path}: {found} bytes, not {size}"
    for package, wanted in probe.versions.items():
        if (there := version(package)) != wanted:
            return f"has {package} {there}, not {wanted}, which may decode other pixels"
    return ""


def _check_nodes(records: Sequence[ImageRecord]) -> None:
    """Raises NotReachable unless a task on each node finds some of the files."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    step = max(1, len(records) // _NUM_PROBES)
    files = [str(record.file) for record in records[::step] if record.file and record.file.exists()]
    probe = Probe(
        str(Path.cwd()),
        {path: os.stat(path).st_size for path in files},
        {package: version(package) for package in _DECODERS},
    )
    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = [
        ray.remote(find_problem)
        .options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        .remote(probe)
        for node in nodes
    ]
    for node, problem in zip(nodes, ray.get(asked), strict=True):
        if problem:
            raise NotReachable(
                f"node {node['NodeManagerAddress']} {problem}. Mount the raw data at the same path "
                "on every node to have all of them read."
            )
    LOGGER.info("%d nodes read the images", len(nodes))


def _pack_there(
    pack: Pack, records: Sequence[ImageRecord], chunk_size: int, config: RayConfig
) -> Iterator[PackedImage]:
    chunks = [records[start : start + chunk_size] for start in range(0, len(records), chunk_size)]
    there = partial(_pack_chunk, working_folder=str(Path.cwd()))
    packed = map_on_ray(there, pack, chunks, config=config)
    for chunk, results in zip(chunks, packed, strict=True):
        for record, result in zip(chunk, results, strict=True):
            # A node may have lost the folder for a moment; what counts is this machine's view.
            yield pack(record) if result.digest == UNREADABLE else result


def _pack_chunk(
    pack: Pack, records: Sequence[ImageRecord], *, working_folder: str
) -> list[PackedImage]:
    _enter(working_folder)
    return [pack(record) for record in records]


def _enter(folder: str) -> None:
    if Path(folder).is_dir():
        os.chdir(folder)
