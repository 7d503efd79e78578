"""A trial's journal: spec.json, epochs.jsonl, result.json and checkpoints/.

Nothing else says what happened to a trial, and each file has one writer: spec.json the driver that
first requests the trial, the others the worker that holds the trial's lock.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.trials.key import KeyParts
from dml_core.trials.spec import TrialRecord, TrialSpec, TrialStatus
from dml_core.trials.store import LocalStore, TrialStore

SPEC_FILE, EPOCHS_FILE, RESULT_FILE = "spec.json", "epochs.jsonl", "result.json"

Epoch = Mapping[str, Any]
"""An EpochReport as a mapping, with `device` and `attempt`: a line of epochs.jsonl."""

_STATUS: dict[str, TrialStatus] = {
    "finished": "finished",
    "stopped": "pruned",
    "diverged": "diverged",
    "collapsed": "collapsed",
    "failed": "failed",
}
_REPEATABLE = ("finished", "diverged", "collapsed")
"""Outcomes that every attempt reaches. A failed trial may end differently the next time."""


class Journal:
    """The record of one trial in a store."""

    def __init__(self, store: TrialStore, key: str) -> None:
        self.store = store
        self.key = key

    @classmethod
    def in_folder(cls, folder: Path) -> "Journal":
        """Returns the journal in a folder outside any store, such as that of `dml train`."""
        return cls(LocalStore(folder.absolute().parent), folder.absolute().name)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, in a store that is a folder."""
        folder = self.store.checkpoint_folder(self.key)
        assert folder is not None, "the checkpoints of a bucket are no files"
        return folder

    def lock(self) -> AbstractContextManager[None]:
        """Waits for the only right to train this trial and holds it within the block."""
        return self.store.lock(self.key)

    def is_locked(self) -> bool:
        """Returns whether a process trains this trial now."""
        return self.store.is_locked(self.key)

    def open(self, parts: KeyParts, *, config: TrialConfig, study: str) -> None:
        """Writes spec.json if there is none: the configuration and the parts of the key."""
        if self.store.read(self.key, SPEC_FILE) is None:
            plain = {name: value for name, value in asdict(parts).items() if name != "config"}
            spec = {
                "key": self.key,
                "study": study,
                **plain,
                "config": config.model_dump(mode="json"),
            }
            self._write(SPEC_FILE, spec)

    def spec(self) -> dict[str, Any] | None:
        """Returns the content of spec.json; None if there is none."""
        return _parse(self.store.read(self.key, SPEC_FILE))

    def epochs(self) -> list[dict[str, Any]]:
        """Returns the recorded epochs; a torn last line is left out."""
        epochs = []
        for line in (self.store.read(self.key, EPOCHS_FILE) or "").splitlines():
            epoch = _parse(line)
            if epoch is None:
                break
            epochs.append(epoch)
        return epochs

    def append_epoch(self, epoch: Epoch) -> None:
        """Adds a line to epochs.jsonl."""
        self.store.append(self.key, EPOCHS_FILE, json.dumps(epoch))

    def keep_epochs(self, last: int) -> None:
        """Removes the epochs after `last`; they are trained again."""
        lines = [json.dumps(epoch) + "\n" for epoch in self.epochs() if epoch["epoch"] <= last]
        self.store.write(self.key, EPOCHS_FILE, "".join(lines))

    def result(self) -> dict[str, Any] | None:
        """Returns the content of result.json; None for a trial that has not ended."""
        result = _parse(self.store.read(self.key, RESULT_FILE))
        return result if result and result.get("outcome") in _STATUS else None

    def has_ended(self) -> bool:
        """Returns whether the trial has ended with an outcome that every attempt reaches."""
        result = self.result()
        return result is not None and result["outcome"] in _REPEATABLE

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes result.json: the trial has ended."""
        self._write(RESULT_FILE, result)

    def write_failure(self, config: TrialConfig, *, reason: str, traceback: str) -> None:
        """Writes the result of a trial that raised; an earlier result stays."""
        if self.result() is None:
            epochs = self.epochs()
            best = selected_epoch(epochs, config)
            self.write_result(
                {
                    "outcome": "failed",
                    "reason": reason,
                    "epoch": epochs[-1]["epoch"] if epochs else 0,
                    "step": None,
                    "best_epoch": best["epoch"] if best else 0,
                    "best_score": selected_score(epochs, config),
                    "validation": best["validation"] if best else {},
                    "train_seconds": sum(epoch["train_seconds"] for epoch in epochs),
                    "device": read_device(epochs),
                    "attempt": read_attempt(epochs),
                    "traceback": traceback,
                }
            )

    def reopen(self) -> None:
        """Removes result.json: the trial resumes from its last intact checkpoint."""
        self.store.remove(self.key, RESULT_FILE)

    def restart(self) -> None:
        """Removes epochs, result and checkpoints: the trial is trained from its first epoch."""
        self.store.remove_checkpoints(self.key)
        for name in (RESULT_FILE, EPOCHS_FILE):
            self.store.remove(self.key, name)

    def changed_at(self, name: str) -> float | None:
        """Returns when a file was last written, in seconds since 1970; None if there is none."""
        return self.store.changed_at(self.key, name)

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        self.store.write(self.key, name, json.dumps(value, indent=2) + "\n")


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Returns the recorded epochs of a training folder; a torn last line is left out."""
    return Journal.in_folder(folder).epochs()


def selected_epoch(epochs: Sequence[Epoch], config: TrialConfig) -> Epoch | None:
    """Returns the epoch that a trial is scored by so far: the best one, or the last validated.

    The first of equally good epochs counts, as in training. None before the first validation.
    """
    scored = [epoch for epoch in epochs if _score(epoch, config) is not None]
    if not scored:
        return None
    if config.training.select == "last":
        return scored[-1]
    return max(scored, key=lambda epoch: _score(epoch, config) or 0.0)


def selected_score(epochs: Sequence[Epoch], config: TrialConfig) -> float | None:
    """Returns the selection metric of the selected epoch."""
    chosen = selected_epoch(epochs, config)
    return None if chosen is None else _score(chosen, config)


def _score(epoch: Epoch, config: TrialConfig) -> float | None:
    score = epoch["validation"].get(config.selection_metric)
    return float(score) if score is not None and math.isfinite(score) else None


def read_device(epochs: Sequence[Epoch]) -> str:
    """Returns the kind of device that trained the last of the epochs; empty if unknown."""
    return str(epochs[-1].get("device", "")) if epochs else ""


def read_attempt(epochs: Sequence[Epoch]) -> int:
    """Returns the number of the attempt that trained the last of the epochs; 0 without any."""
    return int(epochs[-1].get("attempt", 1)) if epochs else 0


def describe_mixed_devices(devices: Iterable[str]) -> str:
    """Returns a line if trials were trained on several kinds of device; empty if not.

    Args:
        devices: the kind of device of each trial; empty if unknown.
    """
    known = sorted(device for device in devices if device)
    listed = ", ".join(f"{known.count(kind)} on {kind}" for kind in dict.fromkeys(known))
    return (
        f"trials were trained on different kinds of device: {listed}. Their numbers may differ by "
        "rounding. For equal conditions, use nodes of one kind."
        if len(set(known)) > 1
        else ""
    )


def make_record(spec: TrialSpec, journal: Journal) -> TrialRecord | None:
    """Returns the record of a trial that has ended, from its journal; None if it has not."""
    result = journal.result()
    if result is None:
        return None
    record = summarize_epochs(
        spec,
        journal.key,
        journal.epochs(),
        status=_STATUS[result["outcome"]],
        reason=result["reason"],
    )
    resumed = max(0, int(result.get("attempt", 1)) - 1)
    return replace(record, epochs=int(result["epoch"]), resumed=resumed)


def summarize_epochs(
    spec: TrialSpec, key: str, epochs: Sequence[Epoch], *, status: TrialStatus, reason: str
) -> TrialRecord:
    """Returns the record of a trial that ended after these epochs."""
    best = selected_epoch(epochs, spec.config)
    return TrialRecord(
        spec=spec,
        status=status,
        reason=reason,
        epochs=int(epochs[-1]["epoch"]) if epochs else 0,
        best_epoch=int(best["epoch"]) if best else 0,
        score=None if status == "failed" else selected_score(epochs, spec.config),
        validation=dict(best["validation"]) if best else {},
        key=key,
        train_seconds=sum(float(epoch["train_seconds"]) for epoch in epochs),
        resumed=max(0, read_attempt(epochs) - 1),
    )


def _parse(text: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if text else None
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
