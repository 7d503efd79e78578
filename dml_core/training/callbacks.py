"""What a trial calls after each epoch."""

from collections.abc import Callable
from pathlib import Path

from dml_core.training.checkpoint import (
    Checkpoint,
    checkpoint_path,
    remove_old_checkpoints,
    save_checkpoint,
)
from dml_core.training.report import EpochReport

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
