"""What a trial reports: after each epoch, and at its end."""

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
    """One epoch in numbers."""

    epoch: int
    """Finished epochs, this one included."""
    num_epochs: int
    train_loss: float
    active_fraction: float | None
    """Mean share of the loss's terms that were active; None where the loss does not tell."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Means over the epoch of the loss's other scalar diagnostics."""
    learning_rates: dict[str, float] = field(default_factory=dict)
    """By part, as they were in the last step."""
    images_per_second: float = 0.0
    """Training images, validation not counted."""
    train_seconds: float = 0.0
    peak_memory_mib: float = 0.0
    """Of the process on the CPU, of the device's allocator on a GPU."""
    validation: dict[str, float] = field(default_factory=dict)
    """Validation metrics; empty in epochs without validation."""
    tables: dict[str, list[list[float]]] = field(default_factory=dict)
    """Square tables of the validation, such as `hardest_distances`, class by class."""


Outcome = Literal["finished", "stopped", "diverged", "collapsed"]


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended."""

    outcome: Outcome
    """finished; stopped by the callback; diverged (NaN or infinity); collapsed (all alike)."""
    reason: str
    """For a trial that did not finish: what happened, where, and what is left."""
    epoch: int
    """Finished epochs."""
    step: int | None
    """Step within the next epoch at which it diverged."""
    best_epoch: int
    best_score: float
    reports: list[EpochReport]


def measure_peak_memory_mib(device: torch.device) -> float:
    """Returns the most memory used so far, in MiB."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


EpochCallback = Callable[[EpochReport, Checkpoint], bool | None]
"""Gets the report and the state after an epoch; returning False stops the trial.

The checkpoint's tensors belong to the running trial: save it before returning."""


def keep_in_folder(folder: Path) -> EpochCallback:
    """Returns a callback that keeps the newest checkpoints of a trial in a folder."""

    def save(report: EpochReport, checkpoint: Checkpoint) -> None:
        training = checkpoint.config.training
        is_last = report.epoch == report.num_epochs
        if report.epoch % training.checkpoint_every and not is_last:
            return
        save_checkpoint(checkpoint, checkpoint_path(folder, report.epoch))
        remove_old_checkpoints(folder, keep=training.keep_checkpoints)

    return save
