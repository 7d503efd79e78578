"""The ended trials of all studies, so that no two of them train the same."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dml_core.config.loading import to_flat_dict
from dml_core.studies.equal_numbers import digest_numbers, digest_stored_numbers
from dml_core.studies.ledger import Ledger
from dml_core.studies.trial_spec import TrialRecord, TrialSpec
from dml_core.training.checkpoint import load_newest_checkpoint

ORIGIN_FILE = "taken_from.json"
"""In a trial's folder: whose training it is, where it is that of another trial."""

_REPEATABLE = ("finished", "diverged", "collapsed")
"""How a trial has to have ended to be taken over: what failed or was stopped may end otherwise."""
_OWN_FILES = ("spec.json", "config.json", "worker.lock", ORIGIN_FILE)

Key = tuple[str, str, str]
"""Digest of the configuration, version of the code, version of the data."""


@dataclass(frozen=True)
class Origin:
    """A trial whose training another one takes over."""

    study: str
    """Name of the working folder that it lies in."""
    trial_id: str


class TrialPool:
    """Finds trials that ended with a given configuration, in this sweep or in others.

    The folders of other sweeps are looked through once, when the first trial is asked for, and
    only trials that have ended are looked at: a sweep may run in them at the same time.
    """

    def __init__(self, ledger: Ledger, sweeps: Path | None = None) -> None:
        """Prepares the search.

        Args:
            ledger: the trials of this sweep.
            sweeps: holds the working folders of all sweeps, one a study; None for this one alone.
        """
        self._ledger = ledger
        self._own = ledger.folder.resolve()
        self._sweeps = sweeps
        self._index: dict[Key, list[Path]] | None = None

    def contains(self, spec: TrialSpec) -> bool:
        """Returns whether another trial with the numbers of this one has ended."""
        return any(True for _ in self._candidates(spec))

    def take_over(self, spec: TrialSpec) -> TrialRecord | None:
        """Makes an equal trial's training that of this one; None where there is none.

        A trial that was begun here goes on here. Of several the first by folder is taken, though
        all have the same numbers.
        """
        if self._ledger.is_current(spec):
            return None
        for source in self._candidates(spec):
            if self._copy(source, spec):
                return self._ledger.find(spec)
        return None

    def add(self, record: TrialRecord) -> None:
        """Takes note of a trial of this sweep that ended."""
        if self._index is not None and record.status in _REPEATABLE:
            folder = self._own / record.folder
            self._index.setdefault(self._key(record.spec), []).append(folder)

    def _candidates(self, spec: TrialSpec) -> Iterator[Path]:
        if self._index is None:
            others = self._sweeps.glob("*") if self._sweeps is not None else ()
            self._index = _build_index({self._own, *(path.resolve() for path in others)})
        key = self._key(spec)
        found = set(self._index.get(key, [])) - {self._own / "trials" / spec.trial_id}
        # Where nobody knows the version of the data, other sweeps may have had others.
        yield from sorted(path for path in found if key[2] or path.is_relative_to(self._own))

    def _key(self, spec: TrialSpec) -> Key:
        return digest_numbers(spec.config), self._ledger.code, self._ledger.data_version(spec)

    def _copy(self, source: Path, spec: TrialSpec) -> bool:
        """Copies a trial's folder whole or not at all; returns whether it was still that trial."""
        partial = self._own / ".taking" / spec.trial_id
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _copy_files(source, partial)
            _write_json(partial / "config.json", to_flat_dict(spec.config))
            _write_json(partial / ORIGIN_FILE, _name_origin(source))
            self._ledger.write_identity(partial, spec)
            # The other sweep may have emptied the folder meanwhile, for another configuration.
            is_whole = _read_key(source) == self._key(spec) and _is_usable(partial)
        except OSError:
            is_whole = False
        if is_whole:
            self._ledger.forget(spec)
            target = self._ledger.trial_folder(spec)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, target)
        shutil.rmtree(partial.parent, ignore_errors=True)
        return is_whole


def read_origin(folder: Path) -> Origin | None:
    """Returns whose training a trial's folder holds; None where it is the trial's own."""
    content = _read_json(folder / ORIGIN_FILE)
    return Origin(**content) if content else None


def count_shared(specs: Iterable[TrialSpec], ledger: Ledger, sweeps: Path) -> int:
    """Returns how many of the trials need no training since another study has trained them."""
    pool = TrialPool(ledger, sweeps)
    return sum(ledger.find(spec) is None and pool.contains(spec) for spec in specs)


def _build_index(folders: Iterable[Path]) -> dict[Key, list[Path]]:
    index: dict[Key, list[Path]] = {}
    for folder in sorted(folders):
        for path in (folder / "trials").glob("*/result.json"):
            key = _read_key(path.parent)
            if key is not None:
                index.setdefault(key, []).append(path.parent)
    return index


def _read_key(folder: Path) -> Key | None:
    """Returns what a trial that can be taken over was made of; None for any other folder."""
    result, identity = _read_json(folder / "result.json"), _read_json(folder / "spec.json")
    if not result or not identity or result.get("outcome") not in _REPEATABLE:
        return None
    try:
        digest = digest_stored_numbers(identity["spec"]["config"])
        return digest, str(identity["code"]), str(identity["data"])
    except (KeyError, TypeError, AttributeError):
        return None


def _copy_files(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.name in _OWN_FILES or path.name.endswith(".partial") or not path.is_file():
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Checkpoints are replaced and never written to, so that two folders may share one.
        if path.parent.name == "checkpoints":
            _link(path, copy)
        else:
            shutil.copyfile(path, copy)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        # Another disk, or one without links.
        shutil.copyfile(source, target)


def _is_usable(folder: Path) -> bool:
    result = _read_json(folder / "result.json")
    if not result:
        return False
    is_finished = result["outcome"] == "finished"
    return not is_finished or load_newest_checkpoint(folder / "checkpoints")[0] is not None


def _name_origin(source: Path) -> dict[str, str]:
    # Of a chain of copies the one that trained is named.
    earlier = read_origin(source)
    study, trial_id = source.parent.parent.name, source.name
    return asdict(earlier or Origin(study=study, trial_id=trial_id))


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
