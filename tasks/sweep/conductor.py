"""Leads the trials of a sweep: what runs next, what is pruned, and who is informed.

It runs on the driver and knows no cluster, so that every rule can be tested without one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dml_core.training.checkpoint import DamagedCheckpoint, checkpoint_path, load_checkpoint
from dml_core.trials.halving import SuccessiveHalving
from dml_core.trials.journal import Ledger, read_epochs, selected_score
from dml_core.trials.spec import TrialRecord, TrialSpec
from tasks.sweep.progress import ProgressTracker, SweepProgress
from tasks.sweep.shared_trials import TrialPool


class TrialSource(Protocol):
    """Hands out trials one after the other, and learns how they ended."""

    def next(self) -> TrialSpec | None:
        """Returns the next trial, or None when there are no more."""

    def tell(self, record: TrialRecord) -> None:
        """Takes note of how a trial ended."""


class ListedTrials:
    """Trials that are known before the first one runs: grid and random search."""

    def __init__(self, specs: Iterable[TrialSpec]) -> None:
        self._specs = iter(specs)

    def next(self) -> TrialSpec | None:
        """Returns the next trial, or None when there are no more."""
        return next(self._specs, None)

    def tell(self, record: TrialRecord) -> None:
        """Does nothing: what was listed does not depend on results."""


class SearchThenRepeats:
    """The trials of a search, and when all of them have ended, those that it leads to."""

    def __init__(
        self,
        search: TrialSource,
        make_repeats: Callable[[Sequence[TrialRecord]], Iterable[TrialSpec]],
    ) -> None:
        """Prepares both phases.

        Args:
            search: the trials of the first phase.
            make_repeats: returns the repeats from the records of the search.
        """
        self.is_exhausted = False
        self._search = search
        self._make_repeats = make_repeats
        self._repeats: Iterator[TrialSpec] | None = None
        self._running: set[str] = set()
        self._records: list[TrialRecord] = []

    def next(self) -> TrialSpec | None:
        """Returns the next trial; None when there is none now, or none at all: `is_exhausted`."""
        if self._repeats is None:
            if (spec := self._search.next()) is not None:
                self._running.add(spec.trial_id)
                return spec
            if self._running:
                return None
            self._repeats = iter(self._make_repeats(self._records))
        repeat = next(self._repeats, None)
        self.is_exhausted = repeat is None
        return repeat

    def tell(self, record: TrialRecord) -> None:
        """Takes note of how a trial ended."""
        if record.spec.phase == "search":
            self._running.discard(record.spec.trial_id)
            self._records.append(record)
            self._search.tell(record)


LOGGER = logging.getLogger(__name__)


def is_final_whole(folder: Path, *, epochs: int) -> bool:
    """Tells whether a trial's folder has the whole checkpoint of its last epoch."""
    try:
        load_checkpoint(checkpoint_path(folder / "checkpoints", epochs))
    except (DamagedCheckpoint, FileNotFoundError) as error:
        LOGGER.warning("%s Its trial goes on from the checkpoint before.", error)
        return False
    return True


PRUNED = "after epoch {epoch} its score {score:.4f} was behind the others of its arm."


def _ignore(*_: Any) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class SweepEvents:
    """Who wants to know of a sweep's progress; all are called on the driver.

    A trial that an earlier process ran is told again from its start, so a listener that was
    killed misses nothing; it has to take a second telling of the same.
    """

    on_update: Callable[[SweepProgress], None] = _ignore
    on_trial_start: Callable[[TrialSpec], None] = _ignore
    on_epoch: Callable[[TrialSpec, Mapping[str, Any]], None] = _ignore
    on_trial_end: Callable[[TrialRecord], None] = _ignore


class Conductor:
    """Leads the trials of a sweep from their source to the ledger."""

    def __init__(
        self,
        source: SearchThenRepeats,
        ledger: Ledger,
        *,
        tracker: ProgressTracker,
        events: SweepEvents,
        halving: SuccessiveHalving | None = None,
        pool: TrialPool | None = None,
        max_failed: int,
    ) -> None:
        self.records: dict[str, TrialRecord] = {}
        self.failures: list[TrialRecord] = []
        self._source = source
        self._ledger = ledger
        self._tracker = tracker
        self._events = events
        self._halving = halving
        self._pool = pool or TrialPool(ledger)
        self._max_failed = max_failed
        self._epochs: dict[str, list[Mapping[str, Any]]] = {}
        self._waiting: TrialSpec | None = None
        self._error: Exception | None = None

    @property
    def must_stop(self) -> bool:
        """Whether the sweep cannot go on."""
        return self.has_too_many_failures or self._error is not None

    @contextmanager
    def kept_errors(self) -> Iterator[None]:
        """Keeps an error of a listener for `raise_error`, where the cluster would swallow it."""
        try:
            yield
        except Exception as error:
            self._error = self._error or error

    def raise_error(self) -> None:
        """Raises the first error that was kept, if there is one."""
        if self._error is not None:
            raise self._error

    @property
    def has_too_many_failures(self) -> bool:
        """Whether more trials failed than the sweep allows."""
        return len(self.failures) > self._max_failed

    @property
    def is_exhausted(self) -> bool:
        """Whether no more trials will come; before that, none may be there for the moment."""
        return self._source.is_exhausted or self.must_stop

    def has_next(self) -> bool:
        """Returns whether there is a trial to run."""
        self._waiting = self.next()
        return self._waiting is not None

    def next(self) -> TrialSpec | None:
        """Returns the next trial to run, or None; those that have ended are only told of."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        while not self.must_stop and (spec := self._source.next()) is not None:
            self._tracker.phase = spec.phase
            record = self._find(spec) or self._take_over(spec)
            if record is None:
                self._ledger.open(spec)
                return spec
            self._tell_earlier(spec, self._ledger.folder / record.folder)
            self._finish(record)
        return None

    def start(self, spec: TrialSpec) -> None:
        """Notes that a trial runs; a restarted one is not announced again."""
        if spec.trial_id not in self._epochs:
            self._tracker.start(spec.trial_id)
            self._tell_earlier(spec, self._ledger.trial_folder(spec))
            self._update()

    def report(self, spec: TrialSpec, epoch: Mapping[str, Any]) -> bool:
        """Takes note of an epoch and returns whether the trial goes on."""
        epochs = self._epochs.setdefault(spec.trial_id, [])
        # After a restart the last epochs come again, bit for bit the same, unless the trial was
        # begun anew on another kind of device: then what was known of it no longer holds.
        earlier = [known for known in epochs if known["epoch"] < epoch["epoch"]]
        again = [known for known in epochs if known["epoch"] == epoch["epoch"]]
        if not again or repr(again[0].get("train_loss")) != repr(epoch.get("train_loss")):
            epochs[:] = [*earlier, epoch]
            self._events.on_epoch(spec, epoch)
        self._update()
        if self._halving is None or not self.judges(spec):
            return True
        return self._judge(self._halving, spec, epochs)

    def judges(self, spec: TrialSpec) -> bool:
        """Returns whether a trial may be stopped after any epoch for being behind others."""
        return self._halving is not None and spec.phase != "repeat"

    def end(self, spec: TrialSpec, *, error: str = "") -> None:
        """Takes note that a trial ended; what ended without result was stopped, and is kept."""
        if error:
            self._ledger.end(spec, outcome="failed", reason=error)
        record = self._ledger.find(spec)
        if record is not None and spec.trial_id not in self.records:
            self._finish(record)

    def _find(self, spec: TrialSpec) -> TrialRecord | None:
        """Returns the record of a trial that ended and can be used."""
        record = self._ledger.find(spec)
        if record is None or spec.phase != "repeat" or record.status != "finished":
            return record
        folder = self._ledger.trial_folder(spec)
        if is_final_whole(folder, epochs=record.epochs):
            return record
        # Its last checkpoint is what is judged on the test classes; it goes on from the one before.
        (folder / "result.json").unlink()
        return None

    def _take_over(self, spec: TrialSpec) -> TrialRecord | None:
        """Returns the record of a trial that was trained already under another name."""
        # Whether a trial goes on depends on the others of its search, and is not looked up.
        if self._halving is not None and spec.phase == "search":
            return None
        return self._pool.take_over(spec)

    def _tell_earlier(self, spec: TrialSpec, folder: Path) -> None:
        self._events.on_trial_start(spec)
        recorded = read_epochs(folder)
        self._epochs[spec.trial_id] = list(recorded)
        for epoch in recorded:
            self._events.on_epoch(spec, epoch)

    def _finish(self, record: TrialRecord) -> None:
        self.records[record.spec.trial_id] = record
        self._epochs.pop(record.spec.trial_id, None)
        if record.status == "failed":
            self.failures.append(record)
        self._pool.add(record)
        self._source.tell(record)
        self._tracker.end(record)
        self._events.on_trial_end(record)
        self._update()

    def _judge(
        self, halving: SuccessiveHalving, spec: TrialSpec, epochs: list[Mapping[str, Any]]
    ) -> bool:
        score, epoch = selected_score(epochs, spec.config), int(epochs[-1]["epoch"])
        goes_on = halving.judge(
            group_of(spec),
            spec.trial_id,
            epoch=epoch,
            num_epochs=spec.config.training.epochs,
            score=score,
        )
        if not goes_on:
            # Written before the trial is stopped, so that a kill in between loses no verdict.
            reason = PRUNED.format(epoch=epoch, score=score)
            self._ledger.end(spec, outcome="stopped", reason=reason)
        return goes_on

    def _update(self) -> None:
        self._events.on_update(self._tracker.now())


def group_of(spec: TrialSpec) -> str:
    """Returns whom a trial is compared with when it may be pruned: its arm in the same fold."""
    return f"{spec.arm} fold {spec.config.data.fold}"


def refill_rungs(halving: SuccessiveHalving, ledger: Ledger) -> None:
    """Enters what earlier processes recorded, so that a resumed sweep prunes as an unbroken one.

    The last epoch of a trial that has not ended is left out: it is reported again, and judged.
    """
    for spec in ledger.known_specs():
        if spec.phase != "search":
            continue
        epochs = ledger.epochs(spec)
        judged = epochs if ledger.find(spec) else epochs[:-1]
        for count in range(1, len(judged) + 1):
            halving.note(
                group_of(spec),
                spec.trial_id,
                epoch=int(judged[count - 1]["epoch"]),
                num_epochs=spec.config.training.epochs,
                score=selected_score(judged[:count], spec.config),
            )
