"""What a trial needs of a cluster."""

from typing import Any

from ray import tune

from dml_core.config.pipeline import RayConfig
from dml_core.studies.plain_specs import spec_from_plain
from tasks.adapters.ray_trainable import order_from_config


def bundles_of(ray_config: RayConfig, *, workers: int = 1) -> tune.PlacementGroupFactory:
    """Returns what so many workers of a trial need: as much as `ray` says for each of them."""
    bundle = {"CPU": ray_config.cpus_per_trial, "GPU": ray_config.gpus_per_trial}
    needed = {kind: amount for kind, amount in bundle.items() if amount}
    return tune.PlacementGroupFactory([needed] * workers)


def bundles_of_trial(ray_config: RayConfig, config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Returns what the trial of Tune's config needs."""
    order = order_from_config(config) if config else None
    workers = spec_from_plain(order.spec).config.trial.workers if order else 1
    return bundles_of(ray_config, workers=workers)
