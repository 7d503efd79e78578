"""Trains with a journal: resumes from its checkpoints, and records epochs and the result."""

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.data.prepared import DevelopmentData
from dml_core.devices import choose_device, describe_device
from dml_core.training.checkpoint import Checkpoint
from dml_core.training.ddp import WorkerGroup
from dml_core.training.errors import DamagedCheckpoint
from dml_core.training.kept import UploadedEpochs, open_checkpoints
from dml_core.training.report import EpochCallback, EpochReport, TrialResult, keep_in_folder
from dml_core.training.trial import run_trial
from dml_core.trials.bucket import BucketStore
from dml_core.trials.journal import Journal, read_attempt
from dml_core.trials.spec import TrialSpec

LOGGER = logging.getLogger(__name__)


def train_in_folder(
    config: TrialConfig,
    data: DevelopmentData,
    folder: Path,
    *,
    on_epoch_end: EpochCallback | None = None,
    on_message: Callable[[str], None] = print,
    group: WorkerGroup | None = None,
) -> TrialResult:
    """Trains one model in a folder outside any store, or resumes the training that is there.

    Writes the files of a journal and `config.json` (every knob). Running it twice is safe.
    """
    journal = Journal.in_folder(folder)
    text = json.dumps(to_flat_dict(config), indent=2) + "\n"
    journal.store.write(journal.key, "config.json", text)
    return train_with_journal(
        config, data, journal, on_epoch_end=on_epoch_end, on_message=on_message, group=group
    )


def train_with_journal(
    config: TrialConfig,
    data: DevelopmentData,
    journal: Journal,
    *,
    on_epoch_end: EpochCallback | None = None,
    on_message: Callable[[str], None] = print,
    group: WorkerGroup | None = None,
    is_judged: bool = False,
) -> TrialResult:
    """Trains one model, or resumes its training from the newest intact checkpoint.

    Writes `checkpoints/`, `epochs.jsonl` (a line for each epoch) and `result.json`. Finished epochs
    are not trained again. In a bucket, an epoch is recorded while the next one trains, unless the
    trial is judged after each epoch.
    """
    checkpoint, refusals = open_checkpoints(journal).load_newest()
    for refusal in refusals:
        on_message(f"{refusal} The one before it is used.")
    attempt = read_attempt(journal.epochs()) + 1
    device = describe_device(choose_device(config.training.device))
    journal.keep_epochs(last=checkpoint.epoch if checkpoint else 0)
    if group is not None:
        group.set_number("start", checkpoint.epoch if checkpoint else 0)
    facts = {"device": device, "attempt": attempt}
    with _recording(journal, facts, on_epoch_end, is_judged=is_judged) as record:
        result = run_trial(config, data, on_epoch_end=record, resume_from=checkpoint, group=group)
        if isinstance(record, UploadedEpochs):
            record.finish()
    summary = _summarize(result, journal.epochs())
    journal.write_result({**summary, **facts})
    return result


def _recording(
    journal: Journal,
    facts: dict[str, Any],
    on_epoch_end: EpochCallback | None,
    *,
    is_judged: bool,
) -> AbstractContextManager[EpochCallback]:
    """Returns the callback that records an epoch and its checkpoint."""
    if isinstance(journal.store, BucketStore):
        return UploadedEpochs(
            journal, journal.store, facts=facts, on_epoch_end=on_epoch_end, waits=is_judged
        )
    save = keep_in_folder(journal.checkpoints)

    # The line of an epoch is written before its checkpoint: after a kill between the two, the epoch
    # is trained again and its line replaced. In the other order the line would be missing for good.
    def record(report: EpochReport, state: Checkpoint) -> bool | None:
        journal.append_epoch({**asdict(report), **facts})
        save(report, state)
        return on_epoch_end(report, state) if on_epoch_end else None

    return nullcontext(record)


def has_usable_result(journal: Journal, spec: TrialSpec) -> bool:
    """Returns whether a trial has ended and its study can use what it left.

    Repeats are evaluated with their last checkpoint, so that must be intact.
    """
    if not journal.has_ended():
        return False
    result = journal.result() or {}
    if spec.phase != "repeat" or result["outcome"] != "finished":
        return True
    try:
        open_checkpoints(journal).load(int(result["epoch"]))
    except (DamagedCheckpoint, FileNotFoundError) as problem:
        LOGGER.warning("%s Its trial resumes from the previous checkpoint.", problem)
        return False
    return True


def train_other_rank(
    config: TrialConfig, data: DevelopmentData, journal: Journal, *, group: WorkerGroup
) -> None:
    """Trains as a rank above 0, while rank 0 is in `train_with_journal`; writes nothing.

    Args:
        config: that of rank 0.
        data: that of rank 0, or a copy on another machine.
        journal: that of rank 0, with the checkpoint of a training that resumes.
        group: this rank's view of the group.
    """
    epoch = group.wait_for_number("start")
    checkpoint = open_checkpoints(journal).load(epoch) if epoch else None
    run_trial(config, data, on_epoch_end=_ignore, resume_from=checkpoint, group=group)


def _ignore(report: EpochReport, checkpoint: Checkpoint) -> None:
    """Does nothing."""


def _summarize(result: TrialResult, epochs: list[dict[str, Any]]) -> dict[str, Any]:
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
