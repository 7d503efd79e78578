"""A study's own record of its trials: what it requested, how it judged, and how that ended.

The trials themselves are in the store, which all studies share. Whatever depends on the other
trials of a study is here, in `trials.jsonl`: which arm requested a key, in which phase and with
which values, the scores at the rungs, and the ends that are the study's decision (pruned) or its
experience (failed). The lines only grow; a torn one is skipped.
"""

import fcntl
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.trials.journal import Journal, make_record, summarize_epochs
from dml_core.trials.key import (
    KeyParts,
    add_own_code,
    compute_key,
    make_parts,
    read_libraries,
    say_other_libraries,
)
from dml_core.trials.spec import (
    TrialRecord,
    TrialSpec,
    TrialStatus,
    spec_from_plain,
    spec_to_plain,
)
from dml_core.trials.store import LEDGER_FILE, TrialStore, is_file_locked

FILE_NAME = LEDGER_FILE
LOCK_FILE = "lock.json"
UNKNOWN_DEVICE = "a device that the driver does not know"

_Name = tuple[str, str]
"""A trial's id and its key: an id whose configuration or code changed is another trial."""


@dataclass(frozen=True)
class Judged:
    """A score that entered the rungs of successive halving."""

    spec: TrialSpec
    epoch: int
    score: float


class Ledger:
    """The trials of one study: keys, journals and the study's own decisions."""

    def __init__(
        self,
        folder: Path,
        store: TrialStore,
        *,
        code: str,
        data_version: Callable[[TrialConfig], str],
        libraries: Mapping[str, str] | None = None,
        expect_device: Callable[[TrialConfig], str] = lambda _: "",
    ) -> None:
        """Reads the record of earlier processes.

        Args:
            folder: the study's working folder.
            store: the trials of all studies.
            code: hash of the training code.
            data_version: returns the version of a trial's data; empty if unknown.
            libraries: versions of the numerical libraries; by default the installed ones.
            expect_device: returns the kind of device as far as it is known; by default unknown.
        """
        self.folder = folder
        self.store = store
        self.code = code
        self.libraries = dict(read_libraries() if libraries is None else libraries)
        self._data_version = data_version
        self._expect_device = expect_device
        self._keys: dict[str, tuple[TrialSpec, str]] = {}
        self._requests: dict[_Name, dict[str, Any]] = {}
        self._requested_keys: set[str] = set()
        self._ends: dict[_Name, dict[str, Any]] = {}
        self._judged: list[tuple[_Name, int, float]] = []
        self.was_stopped = False
        """Whether failed trials stopped the last sweep."""
        self._log = store.open_log(folder)
        for line in _parse_lines(self._log.read()):
            self._enter(line)

    def parts(self, config: TrialConfig) -> KeyParts:
        """Returns the parts of the key of a trial with this configuration."""
        return make_parts(
            config,
            code=add_own_code(self.code, config),
            # Unknown data may be other data in another study, so these trials are not shared.
            data=self._data_version(config) or f"unknown, of {self.folder.name}",
            libraries=self.libraries,
            device=self._expect_device(config),
        )

    def key(self, spec: TrialSpec) -> str:
        """Returns a trial's key."""
        known = self._keys.get(spec.trial_id)
        if known is None or known[0] != spec:
            known = self._keys[spec.trial_id] = spec, compute_key(self.parts(spec.config))
        return known[1]

    def journal(self, spec: TrialSpec) -> Journal:
        """Returns a trial's journal."""
        return Journal(self.store, self.key(spec))

    def data_version(self, spec: TrialSpec) -> str:
        """Returns the version of the data that a trial must read; empty if unknown."""
        return self._data_version(spec.config)

    def open(self, spec: TrialSpec) -> Journal:
        """Records that the study requests a trial, and returns its journal."""
        journal = self.journal(spec)
        if not self.knows(spec):
            is_own = journal.key in self._requested_keys
            self._add(
                "requested",
                key=journal.key,
                code=self.code,
                is_shared=journal.has_ended() and not is_own,
                trial=spec_to_plain(spec),
            )
        journal.open(self.parts(spec.config), config=spec.config, study=self.folder.name)
        return journal

    def knows(self, spec: TrialSpec) -> bool:
        """Returns whether the study has requested this very trial before."""
        return self._name(spec) in self._requests

    def is_shared(self, spec: TrialSpec) -> bool:
        """Returns whether another study had trained the trial when this one requested it."""
        request = self._requests.get(self._name(spec))
        return bool(request and request["is_shared"])

    def find(self, spec: TrialSpec) -> TrialRecord | None:
        """Returns the record of a trial that has ended for this study, or None.

        A failure counts only for the study that saw it: another attempt may end differently.
        """
        if (record := self.find_own_end(spec)) is not None:
            return record
        journal = self.journal(spec)
        return make_record(spec, journal) if journal.has_ended() else None

    def find_own_end(self, spec: TrialSpec) -> TrialRecord | None:
        """Returns the record of a trial that this study has pruned or that failed, or None."""
        end = self._ends.get(self._name(spec))
        return None if end is None else TrialRecord(spec=spec, key=self.key(spec), **end)

    def end(self, spec: TrialSpec, *, error: str = "") -> TrialRecord | None:
        """Returns the record of a trial that a worker has left; None if it has not ended.

        Args:
            spec: the trial.
            error: why no worker could end it, if that is known.
        """
        record = self.find(spec)
        if record is None and not error:
            record = make_record(spec, self.journal(spec))
        if record is None and error:
            record = self._summarize(spec, status="failed", reason=error)
        if record is not None and record.status == "failed":
            self._end(record)
        if record is not None:
            self.store.take_back(record.key)
        return record

    def prune(self, spec: TrialSpec, *, epoch: int, reason: str) -> None:
        """Records that the study ends a trial after an epoch; another study may resume it."""
        self._end(self._summarize(spec, status="pruned", reason=reason, last=epoch))

    def judge(self, spec: TrialSpec, *, epoch: int, score: float) -> None:
        """Records a score that entered the rungs; the trial continues."""
        self._add("judged", trial_id=spec.trial_id, key=self.key(spec), epoch=epoch, score=score)

    def judged(self) -> list[Judged]:
        """Returns the scores that entered the rungs, in order, of trials that are not stale."""
        current = {self._name(spec): spec for spec in self.known_specs()}
        return [
            Judged(current[n], epoch, score) for n, epoch, score in self._judged if n in current
        ]

    def known_specs(self) -> Iterator[TrialSpec]:
        """Yields the trials that the study has requested and that are not stale, in order."""
        for (_, key), request in self._requests.items():
            # The configuration of other code may not be readable by this code.
            if request["code"] == self.code:
                spec = spec_from_plain(request["trial"])
                if self.key(spec) == key:
                    yield spec

    def stop(self) -> None:
        """Records that failed trials have stopped the sweep; the next one runs them again."""
        self._add("stopped")

    def retry_failures(self) -> None:
        """Forgets which trials failed, so that they run again."""
        self.was_stopped = False
        for trial_id, key in [n for n, end in self._ends.items() if end["status"] == "failed"]:
            self._add("retried", trial_id=trial_id, key=key)

    def describe_stale(self) -> list[str]:
        """Returns a line for each reason why trials are stale by libraries or device alone."""
        newest = {trial_id: key for trial_id, key in self._requests}
        counts: Counter[tuple[str, str]] = Counter()
        for trial_id, key in newest.items():
            request = self._requests[trial_id, key]
            then = Journal(self.store, key).spec()
            if request["code"] != self.code or then is None:
                continue
            now = self.parts(spec_from_plain(request["trial"]).config)
            if then["libraries"] != now.libraries:
                counts[say_other_libraries(then["libraries"], now.libraries)] += 1
            elif then["device"] != now.device:
                counts[then["device"] or UNKNOWN_DEVICE, now.device or UNKNOWN_DEVICE] += 1
        return [
            f"{count} trials of {then} are not used; they are trained again with {now}."
            for (then, now), count in counts.items()
        ]

    def remove_superseded(self) -> None:
        """Removes trials that only this study had requested, under an id that has a new key."""
        newest = {trial_id: key for trial_id, key in self._requests}
        superseded = self._requested_keys - set(newest.values())
        texts = self._log.read_others()
        for key in sorted(superseded):
            is_needed = any(f'"{key}"' in text for text in texts)
            if not is_needed and not self.store.is_locked(key):
                self.store.remove(key)

    def _name(self, spec: TrialSpec) -> _Name:
        return spec.trial_id, self.key(spec)

    def _summarize(
        self, spec: TrialSpec, *, status: TrialStatus, reason: str, last: int | None = None
    ) -> TrialRecord:
        journal = self.journal(spec)
        epochs = [e for e in journal.epochs() if last is None or e["epoch"] <= last]
        return summarize_epochs(spec, journal.key, epochs, status=status, reason=reason)

    def _end(self, record: TrialRecord) -> None:
        if self._name(record.spec) not in self._ends:
            plain = {name: value for name, value in vars(record).items() if name != "spec"}
            self._add("ended", trial_id=record.spec.trial_id, **plain)

    def _add(self, event: str, **fields: Any) -> None:
        line = {"event": event, **fields}
        self._log.append(json.dumps(line))
        self._enter(line)

    def _enter(self, line: Mapping[str, Any]) -> None:
        fields = {name: value for name, value in line.items() if name != "event"}
        if line["event"] == "requested":
            name = fields["trial"]["trial_id"], fields["key"]
            # The newest request of an id comes last.
            self._requests.pop(name, None)
            self._requests[name] = fields
            self._requested_keys.add(fields["key"])
            return
        if line["event"] == "stopped":
            self.was_stopped = True
            return
        name = fields.pop("trial_id"), fields.pop("key")
        if line["event"] == "judged":
            self._judged.append((name, fields["epoch"], fields["score"]))
        elif line["event"] == "ended":
            self._ends[name] = fields
            if fields["status"] == "pruned":
                self._judged.append((name, fields["epochs"], fields["score"]))
        else:
            self.was_stopped = False
            self._ends.pop(name, None)


def _parse_lines(texts: list[str]) -> Iterator[dict[str, Any]]:
    for text in texts:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict):
            yield line


class SweepIsRunning(ValueError):
    """Another process works in the folder; the message says which."""


class SweepFolderGone(ValueError):
    """The folder of a sweep was deleted during the sweep."""


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Holds the only right to work in a study's folder; the kernel releases it with the process.

    Raises:
        SweepIsRunning: at once, when another process holds it.
        SweepFolderGone: instead of an error that the deletion of the folder has caused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Opened for appending, so that a refused second sweep does not erase the holder's name.
    with open(folder / LOCK_FILE, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SweepIsRunning(_describe_holder(folder)) from error
        _write_holder(folder / LOCK_FILE)
        try:
            yield
        except Exception as error:
            if (folder / LOCK_FILE).exists():
                raise
            raise SweepFolderGone(
                f"{folder} was deleted while the sweep worked in it, with what its trials had "
                "done. Run the same command again: it trains them anew."
            ) from error


def check_is_free(folder: Path) -> None:
    """Raises SweepIsRunning when another process works in a study's folder; holds nothing."""
    if is_file_locked(folder / LOCK_FILE):
        raise SweepIsRunning(_describe_holder(folder))


def _write_holder(path: Path) -> None:
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
    path.write_text(json.dumps(holder) + "\n", encoding="utf-8")


def _describe_holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError):
        who = "another process"
    return (
        f"{folder} is in use by {who}: two sweeps of one study would run the same trials. "
        "Wait for it, or end that process; what it finished is kept."
    )
