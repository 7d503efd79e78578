"""What a worker does for the frozen part of a trunk, before the trials that read it begin."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dml_core.config import TrialConfig
from dml_core.data.atomic_folder import folder_lock
from dml_core.training.activation_store import StoredSet, store_root
from dml_core.training.activations import WantedActivations, is_cached, want_activations
from dml_core.training.determinism import choose_device, limited_threads
from dml_core.training.state import build_trial_model
from tasks.node_data import DataSource, open_once, provide_data


@dataclass(frozen=True)
class TrunkOrder:
    """The trials that share a frozen trunk and its images, by the configuration of one of them."""

    config: dict[str, Any]
    working_folder: str
    """What relative paths of the configuration start from, where a node has it."""
    data_version: str
    data_source: DataSource = field(default_factory=dict)


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
        WantedView(place, view, wanted.name, len(wanted), wanted.block, wanted.facts)
        for place, wanted in enumerate(_want(order))
        for view in range(wanted.num_views)
    ]


def compute_rows(order: TrunkOrder, wanted: WantedView, start: int, stop: int) -> np.ndarray:
    """Returns a view's activations of a range of images, which begins with a block."""
    activations = _want(order)[wanted.place]
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
    if Path(order.working_folder).is_dir():
        os.chdir(order.working_folder)
    config = TrialConfig.model_validate(order.config)
    return provide_data(config, order.data_source, expected=order.data_version)


def _want(order: TrunkOrder) -> list[WantedActivations]:
    config = _place(order)
    data = open_once(config, expected=order.data_version)
    device: torch.device = choose_device(config.training.device)
    model = build_trial_model(config, in_channels=data.info.channels, device=device)
    if not is_cached(model, config):
        return []
    return list(want_activations(model, data, config, device=device))
