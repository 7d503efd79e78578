"""The reports of a trial: one after each epoch, and its result."""

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from dml_core.training.checkpoint import (
    Checkpoint,
    checkpoint_path,
    remove_old_checkpoints,
    save_checkpoint,
)


@dataclass(frozen=True)
class EpochReport:
    """The numbers of one epoch; each is a line of epochs.jsonl."""

    epoch: int
    """Finished epochs, this one included."""
    num_epochs: int
    train_loss: float
    active_fraction: float | None
    """Mean share of active terms in the loss; None if the loss does not give it."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Means over the epoch of the other scalar diagnostics of the loss."""
    learning_rates: dict[str, float] = field(default_factory=dict)
    """By parameter group, at the last step."""
    images_per_second: float = 0.0
    """Training only; validation does not count."""
    train_seconds: float = 0.0
    peak_memory_mib: float = 0.0
    """Peak of the process on a CPU, of the device's allocator on a GPU."""
    validation: dict[str, float] = field(default_factory=dict)
    """Validation metrics; empty in epochs without validation."""
    tables: dict[str, list[list[float]]] = field(default_factory=dict)
    """Square tables of the validation by class, such as `hardest_distances`."""


Outcome = Literal["finished", "stopped", "diverged", "collapsed"]


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended."""

    outcome: Outcome
    """finished; stopped by the callback; diverged (NaN or infinity); collapsed (all alike)."""
    reason: str
    """For a trial that did not finish: the cause, the place, and the last good state."""
    epoch: int
    """Finished epochs."""
    step: int | None
    """Step of the next epoch at which the trial diverged."""
    best_epoch: int
    best_score: float
    reports: list[EpochReport]


def measure_peak_memory_mib(device: torch.device) -> float:
    """Returns the peak memory so far, in MiB."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


EpochCallback = Callable[[EpochReport, Checkpoint], bool | None]
"""Receives the report and the checkpoint of an epoch; returning False stops the trial.

The tensors of the checkpoint belong to the running trial: save them before returning."""


def keep_in_folder(folder: Path) -> EpochCallback:
    """Returns a callback that saves the newest checkpoints of a trial to a folder."""

    def save(report: EpochReport, checkpoint: Checkpoint) -> None:
        if is_checkpoint_due(report, checkpoint):
            save_checkpoint(checkpoint, checkpoint_path(folder, report.epoch))
            remove_old_checkpoints(folder, keep=checkpoint.config.training.keep_checkpoints)

    return save


def is_checkpoint_due(report: EpochReport, checkpoint: Checkpoint) -> bool:
    """Returns whether the checkpoint of an epoch is kept."""
    is_last = report.epoch == report.num_epochs
    return is_last or report.epoch % checkpoint.config.training.checkpoint_every == 0
