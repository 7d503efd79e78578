"""The function that Ray Tune runs in its workers: one trial."""

import json
import platform
from dataclasses import asdict
from typing import Any

from tasks.epoch_reports import Epoch, EpochReports
from tasks.trial_log import NODE
from tasks.trial_order import TrialOrder

ORDER = "order"
"""Key of Tune's config under which a trial's order travels, as text that Tune leaves alone."""
EPOCHS = "epoch_reports"
"""Key of Tune's result under which the reports of one or more epochs travel, as text."""


def run_tune_trial(config: dict[str, Any]) -> None:
    """Works on the trial that Tune's config holds, and reports its epochs to Tune.

    Where the scheduler stops the trial, the report ends this function's thread.
    """
    from ray import tune

    from tasks.adapters.ray_team import gather_ray_team
    from tasks.trial_worker import work_on_trial

    def send(epochs: list[Epoch]) -> None:
        told = [{**epoch, NODE: platform.node()} for epoch in epochs]
        tune.report({"epoch": epochs[-1]["epoch"], EPOCHS: json.dumps(told)})

    order = order_from_config(config)
    reports = EpochReports(send, at_once=order.is_judged)
    work_on_trial(order, report=reports.add, gather_team=gather_ray_team)
    reports.flush()


def order_to_config(order: TrialOrder) -> dict[str, str]:
    """Returns an order as the config of a Tune trial."""
    return {ORDER: json.dumps(asdict(order))}


def order_from_config(config: dict[str, Any]) -> TrialOrder:
    """Returns the order in the config of a Tune trial."""
    return TrialOrder(**json.loads(config[ORDER]))
