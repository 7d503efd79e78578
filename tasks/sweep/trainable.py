"""The function that Ray Tune runs in its workers, its reports, and what it needs of a cluster."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ray import tune

from dml_core.config.pipeline import RayConfig
from dml_core.trials.spec import spec_from_plain
from tasks.run_log import NODE
from tasks.sweep.job import TrialOrder

Epoch = dict[str, Any]

SECONDS_BETWEEN = 1.0
"""Nobody looks more often; what is not sent yet is in the trial's folder already."""


class EpochReports:
    """Holds an epoch's report back until there is time for it, or the trial's end has come."""

    def __init__(
        self,
        send: Callable[[list[Epoch]], None],
        *,
        at_once: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the sending.

        Args:
            send: gets the reports of one or more epochs, in their order.
            at_once: sends each epoch by itself, for a trial that may be stopped after any.
            clock: tells the seconds.
        """
        self._send = send
        self._at_once = at_once
        self._clock = clock
        self._sent = clock()
        self._waiting: list[Epoch] = []

    def add(self, epoch: Epoch) -> None:
        """Takes an epoch's report, and sends it with those before it where that is due."""
        self._waiting.append(epoch)
        is_last = epoch["epoch"] == epoch["num_epochs"]
        if self._at_once or is_last or self._clock() - self._sent >= SECONDS_BETWEEN:
            self.flush()

    def flush(self) -> None:
        """Sends what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._send(waiting)
            self._sent = self._clock()


ORDER = "order"
"""Key of Tune's config under which a trial's order travels, as text that Tune leaves alone."""
EPOCHS = "epoch_reports"
"""Key of Tune's result under which the reports of one or more epochs travel, as text."""


def run_tune_trial(config: dict[str, Any]) -> None:
    """Works on the trial that Tune's config holds, and reports its epochs to Tune.

    Where the scheduler stops the trial, the report ends this function's thread.
    """
    from ray import tune

    from tasks.sweep.ddp import ray_worker_group
    from tasks.sweep.worker import work_on_trial

    def send(epochs: list[Epoch]) -> None:
        told = [{**epoch, NODE: platform.node()} for epoch in epochs]
        tune.report({"epoch": epochs[-1]["epoch"], EPOCHS: json.dumps(told)})

    order = order_from_config(config)
    reports = EpochReports(send, at_once=order.is_judged)
    work_on_trial(order, report=reports.add, start_group=ray_worker_group)
    reports.flush()


def order_to_config(order: TrialOrder) -> dict[str, str]:
    """Returns an order as the config of a Tune trial."""
    return {ORDER: json.dumps(asdict(order))}


def order_from_config(config: dict[str, Any]) -> TrialOrder:
    """Returns the order in the config of a Tune trial."""
    return TrialOrder(**json.loads(config[ORDER]))


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
