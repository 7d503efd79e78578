"""Works on one trial of a sweep, in whatever process it was sent to."""

import logging
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData, open_development
from dml_core.data.prepared_info import load_info
from dml_core.studies.ledger import note_start, write_end
from dml_core.studies.plain_specs import spec_from_plain
from dml_core.training.checkpoint import Checkpoint
from dml_core.training.in_folder import read_epochs, train_in_folder
from dml_core.training.report import EpochReport
from tasks.watchdog import Watchdog

LOGGER = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]

_MAX_OPEN = 4
_opened: dict[tuple[str, str], DevelopmentData] = {}


@dataclass(frozen=True)
class TrialOrder:
    """Everything that a worker needs to know of a trial, as plain values."""

    spec: dict[str, Any]
    folder: str
    """The trial's folder in the ledger, absolute, seen by every node."""
    working_folder: str
    """What relative paths of the configuration start from, where a node has it."""
    data_version: str
    """What `describe_data` must say of the node's data; empty where nobody knows."""
    timeout_seconds: float = 0.0
    """Longest time without a finished epoch; 0 for no limit."""


def work_on_trial(order: TrialOrder, *, report: Report) -> None:
    """Trains a trial to its end, or goes on with it, and leaves result.json in its folder.

    Nothing that goes wrong inside the training is raised: it is the trial's outcome.

    Args:
        order: the trial.
        report: gets an epoch's record after each epoch, and first the last one of an interrupted
            trial, since nobody may have heard of it.
    """
    folder, config = Path(order.folder), spec_from_plain(order.spec).config
    if (folder / "result.json").exists():
        return
    note_start(folder)
    if Path(order.working_folder).is_dir():
        os.chdir(order.working_folder)

    def give_up() -> None:
        reason = f"no epoch finished within sweep.trial_timeout_seconds={order.timeout_seconds:g}."
        write_end(folder, config, outcome="failed", reason=reason)

    try:
        with Watchdog(order.timeout_seconds, before_exit=give_up) as watchdog:
            _train(order, config, folder, report, watchdog)
    except Exception as error:
        (folder / "failure.txt").write_text(traceback.format_exc(), encoding="utf-8")
        write_end(folder, config, outcome="failed", reason=_summarize(error))


def describe_data(config: TrialConfig) -> str:
    """Returns the hashes of a trial's prepared data and split; empty where there are none here."""
    if not (config.data.prepared_path / "dataset.json").exists():
        return ""
    info = load_info(config.data.prepared_path)
    return f"{info.content_hash}/{info.split_hash}"


def open_once(config: TrialConfig, *, expected: str) -> DevelopmentData:
    """Opens a trial's data, or returns what this process has open already.

    The pixels are memory-mapped, so that all trials of a node share them.
    """
    found = describe_data(config)
    if expected and found and found != expected:
        raise ValueError(
            f"{config.data.prepared_path} on this node must hold the data that the sweep was "
            f"started with, {expected}. Got {found}. Prepare the same data on every node, or "
            "share the folder."
        )
    key = found, config.data.model_dump_json()
    if key not in _opened:
        while len(_opened) >= _MAX_OPEN:
            del _opened[next(iter(_opened))]
        _opened[key] = open_development(config.data)
    return _opened[key]


def _train(
    order: TrialOrder, config: TrialConfig, folder: Path, report: Report, watchdog: Watchdog
) -> None:
    data = open_once(config, expected=order.data_version)
    if earlier := read_epochs(folder):
        with watchdog.paused():
            report(earlier[-1])

    def on_epoch_end(epoch: EpochReport, _: Checkpoint) -> None:
        # The driver may keep a trial waiting for as long as it likes.
        with watchdog.paused():
            report(asdict(epoch))

    train_in_folder(config, data, folder, on_epoch_end=on_epoch_end, on_message=LOGGER.warning)


def _summarize(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:500]}" if lines else type(error).__name__
