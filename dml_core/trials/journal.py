"""A trial's folder: its specification, its epochs and its result, which say what is done."""

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.trials.key import (
    TrialKey,
    is_expected_device,
    make_key,
    read_libraries,
    say_other_libraries,
)
from dml_core.trials.spec import TrialRecord, TrialSpec, TrialStatus, spec_from_plain, spec_to_plain

FILE_NAME = "epochs.jsonl"


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Returns the recorded epochs of a training folder; a torn last line is left out."""
    path = folder / FILE_NAME
    if not path.exists():
        return []
    epochs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            epochs.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return epochs


Epoch = Mapping[str, Any]
"""An EpochReport as a mapping: a line of epochs.jsonl."""


def selected_epoch(epochs: Sequence[Epoch], config: TrialConfig) -> Epoch | None:
    """Returns the epoch that a trial is judged by so far: the best one, or the last validated.

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


DEVICE_FILE = "device.txt"
"""In a trial's folder: the kind of device that trains it, written by its worker."""

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
    it has `result.json`. What a trial with another key left behind is stale: it is never read, and
    removed when its trial is opened again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        code: str,
        data_version: Callable[[TrialConfig], str],
        libraries: Mapping[str, str] | None = None,
        expect_device: Callable[[TrialConfig], str] = lambda _: "",
    ) -> None:
        """Opens a ledger.

        Args:
            folder: the sweep's working folder.
            code: version of the code; trials of another version are stale.
            data_version: tells a trial's data from other data with the same configuration.
            libraries: versions of the numerical libraries; those that are installed by default.
            expect_device: returns as much of a trial's kind of device as is known; by default any.
        """
        self.folder = folder
        self.code = code
        self.libraries = dict(read_libraries() if libraries is None else libraries)
        self._data_version = data_version
        self._expect_device = expect_device

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
            "libraries": self.libraries,
        }

    def key(self, spec: TrialSpec) -> TrialKey:
        """Returns the key of a trial as it has to be now."""
        data = self._data_version(spec.config)
        return make_key(spec.config, code=self.code, data=data, libraries=self.libraries)

    def is_current(self, spec: TrialSpec) -> bool:
        """Returns whether the trial's folder holds this very trial, begun or ended."""
        folder = self.trial_folder(spec)
        return read_key(folder) == self.key(spec) and self.has_right_device(folder, spec)

    def has_right_device(self, folder: Path, spec: TrialSpec) -> bool:
        """Returns whether a folder's trial was trained, or begun, on the kind of device it needs.

        One that no worker has begun has none yet.
        """
        found = read_device(folder)
        return not found or is_expected_device(found, self._expect_device(spec.config))

    def say_outdated(self) -> list[str]:
        """Returns a line for each kind of trials that are stale by libraries or device alone."""
        counts: Counter[tuple[str, str]] = Counter()
        for path in sorted((self.folder / "trials").glob("*/spec.json")):
            stored = _read_json(path)
            if stored is None or stored.get("code") != self.code:
                continue
            libraries = stored.get("libraries", {})
            if libraries != self.libraries:
                counts[say_other_libraries(libraries, self.libraries)] += 1
                continue
            found = read_device(path.parent)
            expected = self._expect_device(spec_from_plain(stored["spec"]).config)
            if found and not is_expected_device(found, expected):
                counts[found, expected] += 1
        return [
            f"{count} trials of {then} are not used; they are trained again with {now}."
            for (then, now), count in counts.items()
        ]


def read_key(folder: Path) -> TrialKey | None:
    """Returns the key of the trial that a folder holds; None where it names none."""
    stored = _read_json(folder / "spec.json") or {}
    try:
        return make_key(
            stored["spec"]["config"],
            code=str(stored["code"]),
            data=str(stored["data"]),
            libraries=stored["libraries"],
        )
    except (KeyError, TypeError, AttributeError):
        return None


def read_device(folder: Path) -> str:
    """Returns the kind of device that a folder's trial was begun on; empty where it was not."""
    try:
        return (folder / DEVICE_FILE).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def say_mixed_devices(folders: Iterable[Path]) -> str:
    """Returns a line where trials were trained on several kinds of device; empty where not."""
    counts = Counter(found for folder in folders if (found := read_device(folder)))
    listed = ", ".join(f"{count} on {kind}" for kind, count in sorted(counts.items()))
    return (
        f"trials were trained on different kinds of device: {listed}. Their numbers may differ by "
        "rounding. For equal conditions, let all nodes be of one kind."
        if len(counts) > 1
        else ""
    )


def note_device(folder: Path, device: str) -> None:
    """Writes the kind of device that a trial is trained on."""
    temporary = folder / f".{DEVICE_FILE}.{os.getpid()}.partial"
    temporary.write_text(f"{device}\n", encoding="utf-8")
    os.replace(temporary, folder / DEVICE_FILE)


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
