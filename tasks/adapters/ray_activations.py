"""Runs images through the frozen part of a trunk on all nodes of a cluster, once for all trials."""

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dml_core.config import TrialConfig
from dml_core.config.pipeline import PipelineConfig, RayConfig
from dml_core.data.atomic_folder import folder_lock
from dml_core.training.activation_store import Rows, StoredSet, store_root
from tasks.adapters.ray_cluster import count_concurrent
from tasks.node_data import describe_data, remember_sources
from tasks.trunk_work import TrunkOrder, WantedView, compute_rows, keep_view, list_views

LOGGER = logging.getLogger(__name__)

_list_views = ray.remote(max_retries=2)(list_views)
_compute_rows = ray.remote(max_retries=2)(compute_rows)
_keep_view = ray.remote(max_retries=2)(keep_view)

_PARTS_A_LANE = 2
"""Of each view: a slow node then gets less of the work, and few parts build the network anew."""


def compute_activations(configs: Sequence[TrialConfig], pipeline: PipelineConfig) -> None:
    """Computes what the frozen trunks of trials make of their images, where nobody did before.

    The work is spread over all nodes, the files are written by this process beside the prepared
    data, and nodes with a data folder of their own are sent a copy. What fails here is left to the
    trials, which compute what they do not find.

    Args:
        configs: of trials; those with the same frozen trunk and images count once.
        pipeline: where nodes find the data, and what a part of the work gets of the cluster: as
            much as a worker of a trial.
    """
    working_folder, find_source = str(Path.cwd()), remember_sources(pipeline.data_access)
    for config in _distinct(configs):
        try:
            order = TrunkOrder(
                config=config.model_dump(mode="json"),
                working_folder=working_folder,
                data_version=describe_data(config),
                data_source=find_source(config),
            )
            _compute(config, order, pipeline.ray)
        except Exception as error:
            LOGGER.warning(
                "what the frozen trunk makes of the images was not computed ahead, the first trial "
                "does it: %s",
                _last_line(error),
            )


def _distinct(configs: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Returns one configuration for each trunk, choice of images and way of cutting them."""
    found: dict[str, TrialConfig] = {}
    for config in configs:
        if not config.trunk.keeps_activations:
            continue
        whole = config.model_dump(mode="json")
        parts = [whole[name] for name in ("data", "trunk", "augmentation")]
        # The head's size plays no part, and the seed only where the trunk's weights are drawn.
        network = {**whole["model"], "embedding_dim": 0}
        seed = config.seed if config.model.weights == "none" else None
        found.setdefault(json.dumps([*parts, network, seed], sort_keys=True), config)
    return list(found.values())


def _compute(config: TrialConfig, order: TrunkOrder, ray_config: RayConfig) -> None:
    resources = {"num_cpus": ray_config.cpus_per_trial, "num_gpus": ray_config.gpus_per_trial}
    lanes = count_concurrent(ray_config)
    for wanted in ray.get(_list_views.options(**resources).remote(order)):
        stored = StoredSet(store_root(config.data) / wanted.name)
        with folder_lock(stored.folder):
            if not stored.has_view(wanted.view):
                LOGGER.info("running %d images through the frozen trunk", wanted.num_images)
                parts = _spread(order, wanted, lanes=lanes, resources=resources)
                stored.write_view(
                    wanted.view, parts, num_images=wanted.num_images, facts=wanted.facts
                )
        if order.data_source:
            _send_to_nodes(order, wanted, stored)


def _spread(
    order: TrunkOrder, wanted: WantedView, *, lanes: int, resources: dict[str, Any]
) -> Iterator[Rows]:
    """Yields the parts of a view as the nodes end with them."""
    task = _compute_rows.options(scheduling_strategy="SPREAD", **resources)
    pending = {
        task.remote(order, wanted, start, stop): start
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


def _send_to_nodes(order: TrunkOrder, wanted: WantedView, stored: StoredSet) -> None:
    """Lets every other node write the view into its own store, so that none computes it again."""
    view = stored.open_view(wanted.view)
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if view is None or not others:
        return
    # Ray moves it between the nodes and spills it to disk where it is large.
    rows = ray.put(np.asarray(view))
    sent = [
        _keep_view.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(order, wanted, rows)
        for node in others
    ]
    ray.get(sent)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else type(error).__name__
