"""The ended trials of all studies, so that no two of them train the same."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dml_core.config.loading import to_flat_dict
from dml_core.studies.resolved import ResolvedStudy
from dml_core.training.checkpoint import load_newest_checkpoint
from dml_core.trials.journal import Ledger, read_key
from dml_core.trials.key import TrialKey
from dml_core.trials.spec import TrialRecord, TrialSpec
from tasks.study import StudyContext
from tasks.sweep.node_data import open_ledger

ORIGIN_FILE = "taken_from.json"
"""In a trial's folder: whose training it is, where it is that of another trial."""

_REPEATABLE = ("finished", "diverged", "collapsed")
"""How a trial has to have ended to be taken over: what failed or was stopped may end otherwise."""
_OWN_FILES = ("spec.json", "config.json", "worker.lock", ORIGIN_FILE)


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
        self._index: dict[TrialKey, list[Path]] | None = None

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
            self._index.setdefault(self._ledger.key(record.spec), []).append(folder)

    def _candidates(self, spec: TrialSpec) -> Iterator[Path]:
        if self._index is None:
            others = self._sweeps.glob("*") if self._sweeps is not None else ()
            self._index = _build_index({self._own, *(path.resolve() for path in others)})
        key = self._ledger.key(spec)
        found = set(self._index.get(key, [])) - {self._own / "trials" / spec.trial_id}
        yield from sorted(
            path
            for path in found
            # Where the version of the data is unknown, other sweeps may have had others.
            if (key.data or path.is_relative_to(self._own))
            and self._ledger.has_right_device(path, spec)
        )

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
            is_same = _read_repeatable_key(source) == self._ledger.key(spec)
            is_whole = is_same and _is_usable(partial)
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


def _build_index(folders: Iterable[Path]) -> dict[TrialKey, list[Path]]:
    index: dict[TrialKey, list[Path]] = {}
    for folder in sorted(folders):
        for path in (folder / "trials").glob("*/result.json"):
            key = _read_repeatable_key(path.parent)
            if key is not None:
                index.setdefault(key, []).append(path.parent)
    return index


def _read_repeatable_key(folder: Path) -> TrialKey | None:
    """Returns the key of a trial that can be taken over; None for any other folder."""
    result = _read_json(folder / "result.json")
    return read_key(folder) if result and result.get("outcome") in _REPEATABLE else None


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


def count_shared_trials(context: StudyContext) -> int:
    """Returns how many trials of a study would be taken over from other studies.

    Only those are counted that are known before the study runs: all of a grid or random search
    that does not prune, and the repeats of arms that tune nothing.
    """
    ledger = open_ledger(context.working_folder, context.project.pipeline.ray)
    return count_shared(list_known_trials(context.study), ledger, context.working_folder.parent)


def list_known_trials(study: ResolvedStudy) -> list[TrialSpec]:
    """Returns the trials of a study that depend on no result and may be taken over."""
    is_listed = study.searcher != "tpe" and study.scheduler.name == "none"
    untuned = {arm.name: {} for arm in study.arms if not arm.space}
    return [*(study.search_specs() if is_listed else []), *study.repeat_specs(untuned)]
