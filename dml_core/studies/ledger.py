"""The ledger of a sweep: one folder a trial, the truth about what is done."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.studies.epoch_scores import selected_epoch, selected_score
from dml_core.studies.equal_numbers import digest_numbers, digest_stored_numbers
from dml_core.studies.plain_specs import spec_from_plain, spec_to_plain
from dml_core.studies.trial_spec import TrialRecord, TrialSpec, TrialStatus
from dml_core.training.epochs_file import read_epochs

_STATUS: dict[str, TrialStatus] = {
    "finished": "finished",
    "stopped": "pruned",
    "diverged": "diverged",
    "collapsed": "collapsed",
    "failed": "failed",
}


class Ledger:
    """The trials of a sweep on disk.

    A trial's folder has `spec.json` beside what `train_in_folder` writes. A trial has ended once
    it has `result.json`. What another configuration, other code or other data left behind is
    stale: it is never read, and removed when its trial is opened again.
    """

    def __init__(
        self, folder: Path, *, code: str, data_version: Callable[[TrialConfig], str]
    ) -> None:
        """Opens a ledger.

        Args:
            folder: the sweep's working folder.
            code: version of the code; trials of another version are stale.
            data_version: tells a trial's data from other data with the same configuration.
        """
        self.folder = folder
        self.code = code
        self._data_version = data_version

    def trial_folder(self, spec: TrialSpec) -> Path:
        """Returns the folder of a trial."""
        return self.folder / "trials" / spec.trial_id

    def open(self, spec: TrialSpec) -> Path:
        """Returns the folder of a trial that is about to run, emptied where it is stale."""
        folder = self.trial_folder(spec)
        if not self.is_current(spec):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self.write_identity(folder, spec)
        return folder

    def write_identity(self, folder: Path, spec: TrialSpec) -> None:
        """Writes spec.json: which trial a folder is of, with which code and data."""
        _write_json(folder / "spec.json", self._identity(spec))

    def find(self, spec: TrialSpec) -> TrialRecord | None:
        """Returns the record of a trial that has ended, or None."""
        if not self.is_current(spec):
            return None
        folder = self.trial_folder(spec)
        result = _read_json(folder / "result.json")
        return None if result is None else make_record(spec, result, folder)

    def epochs(self, spec: TrialSpec) -> list[dict[str, Any]]:
        """Returns the recorded epochs of a trial; none of a stale one."""
        return read_epochs(self.trial_folder(spec)) if self.is_current(spec) else []

    def end(self, spec: TrialSpec, *, outcome: str, reason: str) -> None:
        """Writes how a trial ended, where the trial itself cannot; an earlier end stays."""
        write_end(self.trial_folder(spec), spec.config, outcome=outcome, reason=reason)

    def known_specs(self) -> Iterator[TrialSpec]:
        """Yields the specs of all trials that are not stale, by name."""
        for path in sorted((self.folder / "trials").glob("*/spec.json")):
            stored = _read_json(path)
            if stored is not None and stored["code"] == self.code:
                spec = spec_from_plain(stored["spec"])
                if self.is_current(spec):
                    yield spec

    def forget(self, spec: TrialSpec) -> None:
        """Removes a trial, so that it runs again from the start."""
        shutil.rmtree(self.trial_folder(spec), ignore_errors=True)

    def data_version(self, spec: TrialSpec) -> str:
        """Returns the version of the data that a trial has to see."""
        return self._data_version(spec.config)

    def _identity(self, spec: TrialSpec) -> dict[str, Any]:
        return {
            "spec": spec_to_plain(spec),
            "code": self.code,
            "data": self._data_version(spec.config),
        }

    def is_current(self, spec: TrialSpec) -> bool:
        """Returns whether the trial's folder holds this very trial, begun or ended."""
        stored = _read_json(self.trial_folder(spec) / "spec.json")
        wanted = self._identity(spec)
        if stored is None or any(stored.get(key) != wanted[key] for key in ("code", "data")):
            return False
        return digest_stored_numbers(stored["spec"]["config"]) == digest_numbers(spec.config)


def make_record(spec: TrialSpec, result: dict[str, Any], folder: Path) -> TrialRecord:
    """Returns the record of an ended trial from its result.json and its epochs."""
    epochs = read_epochs(folder)
    status = _STATUS[result["outcome"]]
    best = selected_epoch(epochs, spec.config)
    starts = folder / "starts"
    return TrialRecord(
        spec=spec,
        status=status,
        reason=result["reason"],
        epochs=int(result["epoch"]),
        best_epoch=int(best["epoch"]) if best else 0,
        score=None if status == "failed" else selected_score(epochs, spec.config),
        validation=dict(best["validation"]) if best else {},
        folder=f"trials/{spec.trial_id}",
        train_seconds=sum(float(epoch["train_seconds"]) for epoch in epochs),
        resumed=max(0, starts.stat().st_size - 1) if starts.exists() else 0,
    )


def note_start(folder: Path) -> None:
    """Counts a start of a trial in its folder."""
    # One byte a start: appending is whole or not there, whenever the process is killed.
    with open(folder / "starts", "a", encoding="ascii") as file:
        file.write(".")


def write_end(folder: Path, config: TrialConfig, *, outcome: str, reason: str) -> None:
    """Writes the result.json of a trial that did not write its own; one that is there stays."""
    if (folder / "result.json").exists():
        return
    epochs = read_epochs(folder)
    best = selected_epoch(epochs, config)
    result = {
        "outcome": outcome,
        "reason": reason,
        "epoch": epochs[-1]["epoch"] if epochs else 0,
        "step": None,
        "best_epoch": best["epoch"] if best else 0,
        "best_score": selected_score(epochs, config),
        "validation": best["validation"] if best else {},
        "train_seconds": sum(epoch["train_seconds"] for epoch in epochs),
    }
    _write_json(folder / "result.json", result)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return content if isinstance(content, dict) else None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        # No later process has this name for it, so it would stay.
        temporary.unlink(missing_ok=True)
        raise
