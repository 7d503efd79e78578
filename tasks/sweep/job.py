"""What a worker receives for a trial, and the function that Ray Tune runs there.

The module imports no torch: a worker sets up its memory before torch is loaded.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dml_core.config import TrialConfig
from dml_core.config.pipeline import RayConfig
from dml_core.config.training import DdpConfig
from dml_core.trials.key import (
    add_own_code,
    hash_training_code,
    read_libraries,
    say_other_libraries,
)
from dml_core.trials.spec import spec_from_plain
from tasks.machine_faults import OtherCode
from tasks.run_log import NODE
from tasks.sweep.node_data import DataSource
from tasks.sweep.nodes import gpus_of

if TYPE_CHECKING:
    from ray import tune

Epoch = dict[str, Any]

SECONDS_BETWEEN = 1.0
"""Reports of a trial that is not judged are sent this often; its journal has them already."""
JOB = "job"
"""Key of Tune's config that holds a trial's job, as JSON so that Tune does not interpret it."""
EPOCHS = "epoch_reports"
"""Key of Tune's result that holds the reports of one or more epochs, as JSON."""
MESSAGES = "messages"
"""Key of an epoch's report: the warnings since the previous report, if there are any."""


@dataclass(frozen=True)
class TrialJob:
    """Everything that a worker needs to know about a trial, as plain values."""

    spec: dict[str, Any]
    key: str
    store: str
    """Location of the store of trials, which every node reaches."""
    note: str
    """File that gets the reason if the watchdog kills the worker."""
    working_folder: str
    """Base of the configuration's relative paths, where a node has it."""
    data_version: str
    """`describe_data` of the driver's data, which a node must match; empty if unknown."""
    data_source: DataSource = field(default_factory=dict)
    """Where a node that lacks the data fetches them."""
    timeout_seconds: float = 0.0
    """Longest time without a finished epoch; 0 for no limit."""
    is_judged: bool = False
    """Whether the trial may be pruned after any epoch."""
    code: str = ""
    """Hash of the training code that the worker must have imported; empty for any."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions that the worker must have, by library."""


class EpochReports:
    """Batches the reports of epochs, so that short epochs do not flood the driver."""

    def __init__(
        self,
        send: Callable[[list[Epoch]], None],
        *,
        at_once: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the batches.

        Args:
            send: receives the reports of one or more epochs, in order.
            at_once: sends each epoch by itself, for a trial that may be pruned after any.
            clock: returns seconds.
        """
        self._send = send
        self._at_once = at_once
        self._clock = clock
        self._sent = clock()
        self._waiting: list[Epoch] = []

    def add(self, epoch: Epoch) -> None:
        """Adds an epoch's report, and sends the batch where that is due."""
        self._waiting.append(epoch)
        is_last = epoch["epoch"] == epoch["num_epochs"]
        if self._at_once or is_last or self._clock() - self._sent >= SECONDS_BETWEEN:
            self.flush()

    def flush(self) -> None:
        """Sends the batch."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._send(waiting)
            self._sent = self._clock()


def run_tune_trial(config: dict[str, Any]) -> None:
    """Trains the trial of Tune's config and reports its epochs to Tune.

    Where the scheduler stops the trial, the report ends this function's thread.
    """
    from ray import tune

    from tasks.sweep.ddp import ray_worker_group
    from tasks.sweep.worker import work_on_trial

    def send(epochs: list[Epoch]) -> None:
        placed = [{**epoch, NODE: platform.node()} for epoch in epochs]
        tune.report({"epoch": epochs[-1]["epoch"], EPOCHS: json.dumps(placed)})

    job = job_from_config(config)
    reports = EpochReports(send, at_once=job.is_judged)
    work_on_trial(job, report=reports.add, start_group=ray_worker_group)
    reports.flush()


def job_to_config(job: TrialJob) -> dict[str, str]:
    """Returns a job as the config of a Tune trial."""
    return {JOB: json.dumps(vars(job))}


def job_from_config(config: dict[str, Any]) -> TrialJob:
    """Returns the job in the config of a Tune trial."""
    return TrialJob(**json.loads(config[JOB]))


def bundles_of(
    ray_config: RayConfig, trial: DdpConfig | None = None
) -> "tune.PlacementGroupFactory":
    """Returns the resources of a trial's workers, a bundle for each; by default of one worker."""
    trial = trial or DdpConfig()
    bundle = {"CPU": ray_config.cpus_per_trial, "GPU": gpus_of(ray_config, trial)}
    needed = {kind: amount for kind, amount in bundle.items() if amount}
    from ray import tune

    return tune.PlacementGroupFactory([needed] * trial.workers)


def bundles_of_trial(ray_config: RayConfig, config: dict[str, Any]) -> "tune.PlacementGroupFactory":
    """Returns the resources of the trial in Tune's config."""
    job = job_from_config(config) if config else None
    return bundles_of(ray_config, spec_from_plain(job.spec).config.trial if job else None)


def check_code(code: str, libraries: Mapping[str, str], config: TrialConfig | None = None) -> None:
    """Raises OtherCode where this process has other code or libraries than its sweep.

    Args:
        code: hash of the sweep's training code; empty for any.
        libraries: versions that the sweep has, by library.
        config: of the trial; the code that it names counts too.
    """
    found = hash_training_code()
    if config is not None:
        found = add_own_code(found, config)
    if code and found != code:
        raise OtherCode(
            f"a worker on {platform.node()} imported other training code ({found}) than the sweep "
            f"was started with ({code}), so the sweep was stopped; the worker recorded nothing and "
            "all finished epochs are kept. Restore the code there, or end older processes, and run "
            "the same command again."
        )
    there = {name: read_libraries().get(name, "none") for name in libraries}
    if there != dict(libraries):
        wanted, found = say_other_libraries(libraries, there)
        raise OtherCode(
            f"a worker on {platform.node()} has {found} where the sweep was started with {wanted}, "
            "so the sweep was stopped; the worker recorded nothing and all finished epochs are "
            "kept. Install requirements.lock on every node, and run the same command again."
        )
