"""Computes the activations of frozen trunks on all nodes of a cluster, once for all trials."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dml_core.config import TrialConfig
from dml_core.config.pipeline import PipelineConfig, RayConfig
from dml_core.data.atomic_folder import folder_lock
from dml_core.devices import choose_device
from dml_core.training.activation_store import Rows, StoredSet, store_root
from dml_core.training.activations import CachedActivations, is_cached, make_cached_activations
from dml_core.training.determinism import limited_threads
from dml_core.training.state import build_trial_model
from tasks.machine_faults import OtherCode
from tasks.sweep.cluster import count_concurrent
from tasks.sweep.node_data import open_once
from tasks.sweep.node_job import NodeJob, node_jobs


@dataclass(frozen=True)
class WantedView:
    """One file of activations and its amount of work."""

    place: int
    """0 for the training images, 1 for those of the validation."""
    view: int
    name: str
    """Name of its folder in the store."""
    num_images: int
    block: int
    """Images in one forward pass; a part of the work consists of whole batches of this size."""
    facts: dict[str, Any]


def list_views(job: NodeJob) -> list[WantedView]:
    """Returns the views that the trials of a job read; none if nothing is frozen."""
    return [
        WantedView(place, view, wanted.name, len(wanted), wanted.chunk_size, wanted.facts)
        for place, wanted in enumerate(_want(job))
        for view in range(wanted.num_views)
    ]


def compute_rows(job: NodeJob, wanted: WantedView, start: int, stop: int) -> np.ndarray:
    """Returns a view's activations of a range of images, which begins with a block."""
    activations = _want(job)[wanted.place]
    if activations.name != wanted.name:
        raise ValueError(
            f"the nodes of a cluster must agree on the activations {wanted.name}. This node has "
            f"{activations.name}: its device is of another kind."
        )
    threads = TrialConfig.model_validate(job.config).training.cpu_threads
    with limited_threads(threads):
        return np.concatenate(
            [rows for _, rows in activations.compute(wanted.view, start, stop)], axis=0
        )


def keep_view(job: NodeJob, wanted: WantedView, rows: np.ndarray) -> None:
    """Writes a view to the store of this node, if the node has its own store without it."""
    config = job.place()
    stored = StoredSet(store_root(config.data) / wanted.name)
    with folder_lock(stored.folder):
        if not stored.has_view(wanted.view):
            stored.write_view(
                wanted.view, [(0, rows)], num_images=wanted.num_images, facts=wanted.facts
            )


def _want(job: NodeJob) -> list[CachedActivations]:
    config = job.place()
    data = open_once(config, expected=job.data_version)
    device: torch.device = choose_device(config.training.device)
    model = build_trial_model(config, in_channels=data.info.channels, device=device)
    if not is_cached(model, config):
        return []
    return list(make_cached_activations(model, data, config, device=device))


LOGGER = logging.getLogger(__name__)

_list_views = ray.remote(max_retries=2)(list_views)
_compute_rows = ray.remote(max_retries=2)(compute_rows)
_keep_view = ray.remote(max_retries=2)(keep_view)

_PARTS_A_LANE = 2
"""Parts of a view per worker: a slow node gets fewer, and few parts rebuild the network."""


def compute_activations(configs: Sequence[TrialConfig], pipeline: PipelineConfig) -> None:
    """Computes the cached activations of frozen trunks that are still missing.

    The work is spread over all nodes. This process writes the files beside the prepared data and
    sends a copy to nodes with their own data folder. After an error here, trials compute what they
    do not find.

    Args:
        configs: of trials; those with the same frozen trunk and images count once.
        pipeline: where nodes find the data, and the resources of a part: those of a worker.
    """
    make_job = node_jobs(pipeline.data_access)
    for config in _distinct(configs):
        try:
            _compute(config, make_job(config), pipeline.ray)
        except OtherCode:
            raise
        except Exception as error:
            LOGGER.warning(
                "the activations of a frozen trunk were not computed ahead; the first trial does "
                "that: %s",
                _last_line(error),
            )


def _distinct(configs: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Returns one configuration for each trunk, set of images and way of cropping them."""
    found: dict[str, TrialConfig] = {}
    for config in configs:
        if not config.trunk.keeps_activations:
            continue
        whole = config.model_dump(mode="json")
        parts = [whole[name] for name in ("data", "trunk", "augmentation")]
        # The head's size does not matter, and the seed only if the trunk's weights are random.
        network = {**whole["model"], "embedding_dim": 0}
        seed = config.seed if config.model.weights == "none" else None
        found.setdefault(json.dumps([*parts, network, seed], sort_keys=True), config)
    return list(found.values())


def _compute(config: TrialConfig, job: NodeJob, ray_config: RayConfig) -> None:
    resources = {"num_cpus": ray_config.cpus_per_trial, "num_gpus": ray_config.gpus_per_trial}
    lanes = count_concurrent(ray_config)
    for wanted in ray.get(_list_views.options(**resources).remote(job)):
        stored = StoredSet(store_root(config.data) / wanted.name)
        with folder_lock(stored.folder):
            if not stored.has_view(wanted.view):
                LOGGER.info("running %d images through the frozen trunk", wanted.num_images)
                parts = _spread(job, wanted, lanes=lanes, resources=resources)
                stored.write_view(
                    wanted.view, parts, num_images=wanted.num_images, facts=wanted.facts
                )
        if job.data_source:
            _send_to_nodes(job, wanted, stored)


def _spread(
    job: NodeJob, wanted: WantedView, *, lanes: int, resources: dict[str, Any]
) -> Iterator[Rows]:
    """Yields the parts of a view in the order in which they are finished."""
    task = _compute_rows.options(scheduling_strategy="SPREAD", **resources)
    pending = {
        task.remote(job, wanted, start, stop): start
        for start, stop in split_blocks(wanted.num_images, wanted.block, lanes * _PARTS_A_LANE)
    }
    while pending:
        (ready,), _ = ray.wait(list(pending), num_returns=1)
        yield pending.pop(ready), ray.get(ready)


def split_blocks(num_images: int, block: int, num_parts: int) -> list[tuple[int, int]]:
    """Returns at most so many ranges of whole blocks that cover all images."""
    num_blocks = -(-num_images // block)
    bounds = np.linspace(0, num_blocks, min(num_parts, num_blocks) + 1).astype(int) * block
    return [(int(start), min(int(stop), num_images)) for start, stop in pairwise(bounds)]


def _send_to_nodes(job: NodeJob, wanted: WantedView, stored: StoredSet) -> None:
    """Sends the view to the store of every other node, so that none computes it again."""
    view = stored.open_view(wanted.view)
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if view is None or not others:
        return
    # Ray moves it between nodes and spills it to disk if it is large.
    rows = ray.put(np.asarray(view))
    sent = [
        _keep_view.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(job, wanted, rows)
        for node in others
    ]
    ray.get(sent)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else type(error).__name__
