"""Trains in a folder: goes on from what is there, and leaves checkpoints and a record."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.data.prepared import DevelopmentData
from dml_core.training.checkpoint import (
    Checkpoint,
    checkpoint_path,
    load_checkpoint,
    load_newest_checkpoint,
)
from dml_core.training.ddp import WorkerGroup
from dml_core.training.report import EpochCallback, EpochReport, TrialResult, keep_in_folder
from dml_core.training.trial import run_trial
from dml_core.trials.journal import read_epochs


def train_in_folder(
    config: TrialConfig,
    data: DevelopmentData,
    folder: Path,
    *,
    on_epoch_end: EpochCallback | None = None,
    on_message: Callable[[str], None] = print,
    group: WorkerGroup | None = None,
) -> TrialResult:
    """Trains one model, or goes on with the training that a folder holds.

    Writes `checkpoints/`, `epochs.jsonl` (a line for each epoch), `config.json` (every knob) and
    `result.json`. Running it twice is safe: what is done is not done again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, refusals = load_newest_checkpoint(folder / "checkpoints")
    for refusal in refusals:
        on_message(f"{refusal} The one before it is used.")
    _write_json(folder / "config.json", to_flat_dict(config))
    # The line of an epoch is written before its checkpoint: after a kill between the two it would
    # stand twice. The other way around it would be missing for ever.
    _cut_epochs(folder / "epochs.jsonl", keep=checkpoint.epoch if checkpoint else 0)
    save = keep_in_folder(folder / "checkpoints")

    def record(report: EpochReport, state: Checkpoint) -> bool | None:
        with open(folder / "epochs.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")
        save(report, state)
        return on_epoch_end(report, state) if on_epoch_end else None

    if group is not None:
        group.set_number("start", checkpoint.epoch if checkpoint else 0)
    result = run_trial(config, data, on_epoch_end=record, resume_from=checkpoint, group=group)
    _write_json(folder / "result.json", _summarize(result, folder))
    return result


def train_other_rank(
    config: TrialConfig, data: DevelopmentData, folder: Path, *, group: WorkerGroup
) -> None:
    """Trains as a rank above 0, while rank 0 is in `train_in_folder`; writes nothing.

    Args:
        config: that of rank 0.
        data: that of rank 0, or a copy on another machine.
        folder: that of rank 0, with the checkpoint of a training that resumes.
        group: this rank's view of the group.
    """
    epoch = group.wait_for_number("start")
    path = checkpoint_path(folder / "checkpoints", epoch)
    checkpoint = load_checkpoint(path) if epoch else None
    run_trial(config, data, on_epoch_end=_say_nothing, resume_from=checkpoint, group=group)


def _say_nothing(report: EpochReport, checkpoint: Checkpoint) -> None:
    """Does nothing."""


def _cut_epochs(path: Path, *, keep: int) -> None:
    kept = [epoch for epoch in read_epochs(path.parent) if epoch["epoch"] <= keep]
    temporary = path.with_suffix(".partial")
    temporary.write_text("".join(json.dumps(e) + "\n" for e in kept), encoding="utf-8")
    os.replace(temporary, path)


def _summarize(result: TrialResult, folder: Path) -> dict[str, Any]:
    epochs = read_epochs(folder)
    best = [epoch for epoch in epochs if epoch["epoch"] == result.best_epoch]
    return {
        "outcome": result.outcome,
        "reason": result.reason,
        "epoch": result.epoch,
        "step": result.step,
        "best_epoch": result.best_epoch,
        "best_score": result.best_score if best else None,
        "validation": best[-1]["validation"] if best else {},
        "train_seconds": sum(epoch["train_seconds"] for epoch in epochs),
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
