"""Computes the activations of frozen trunks on all nodes of a cluster, once for all trials."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dml_core.config import TrialConfig
from dml_core.config.pipeline import PipelineConfig, RayConfig
from dml_core.data.atomic_folder import folder_lock
from dml_core.training.activation_store import Rows, StoredSet, store_root
from dml_core.training.activations import CachedActivations, is_cached, make_cached_activations
from dml_core.training.determinism import choose_device, limited_threads
from dml_core.training.state import build_trial_model
from dml_core.trials.key import hash_training_code, read_libraries
from tasks.machine_faults import OtherCode
from tasks.sweep.cluster import count_concurrent
from tasks.sweep.job import check_code
from tasks.sweep.node_data import (
    DataSource,
    describe_data,
    open_once,
    provide_data,
    remember_sources,
)


@dataclass(frozen=True)
class TrunkOrder:
    """The trials that share a frozen trunk and its images, by the configuration of one of them."""

    config: dict[str, Any]
    working_folder: str
    """What relative paths of the configuration start from, where a node has it."""
    data_version: str
    data_source: DataSource = field(default_factory=dict)
    code: str = ""
    """Hash of the training code that the worker must have imported; empty for any."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions that the worker must have, by library."""


@dataclass(frozen=True)
class WantedView:
    """One file of activations: which it is, and how much work."""

    place: int
    """0 for the training images, 1 for those of the validation."""
    view: int
    name: str
    """Of its folder in the store."""
    num_images: int
    block: int
    """Images that pass the network at once; a part of the work is whole blocks."""
    facts: dict[str, Any]


def list_views(order: TrunkOrder) -> list[WantedView]:
    """Returns the views that the trials of an order read; none where nothing is frozen."""
    return [
        WantedView(place, view, wanted.name, len(wanted), wanted.chunk_size, wanted.facts)
        for place, wanted in enumerate(_want(order))
        for view in range(wanted.num_views)
    ]


def compute_rows(order: TrunkOrder, wanted: WantedView, start: int, stop: int) -> np.ndarray:
    """Returns a view's activations of a range of images, which begins with a block."""
    activations = _want(order)[wanted.place]
    if activations.name != wanted.name:
        raise ValueError(
            f"the nodes of a cluster must agree on the activations {wanted.name}. This node has "
            f"{activations.name}: its device is of another kind."
        )
    threads = TrialConfig.model_validate(order.config).training.cpu_threads
    with limited_threads(threads):
        return np.concatenate(
            [rows for _, rows in activations.compute(wanted.view, start, stop)], axis=0
        )


def keep_view(order: TrunkOrder, wanted: WantedView, rows: np.ndarray) -> None:
    """Writes a view to the store of this node, where it has one of its own and lacks it."""
    config = _place(order)
    stored = StoredSet(store_root(config.data) / wanted.name)
    with folder_lock(stored.folder):
        if not stored.has_view(wanted.view):
            stored.write_view(
                wanted.view, [(0, rows)], num_images=wanted.num_images, facts=wanted.facts
            )


def _place(order: TrunkOrder) -> TrialConfig:
    check_code(order.code, order.libraries)
    if Path(order.working_folder).is_dir():
        os.chdir(order.working_folder)
    config = TrialConfig.model_validate(order.config)
    return provide_data(config, order.data_source, expected=order.data_version)


def _want(order: TrunkOrder) -> list[CachedActivations]:
    config = _place(order)
    data = open_once(config, expected=order.data_version)
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
                code=hash_training_code(),
                libraries=read_libraries(),
            )
            _compute(config, order, pipeline.ray)
        except OtherCode:
            raise
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
