"""Decides which trial of a sweep runs next and which one is pruned, and informs the listeners.

It runs on the driver and knows no cluster, so that every rule can be tested without one.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from dml_core.trials.halving import SuccessiveHalving
from dml_core.trials.journal import Journal, selected_score
from dml_core.trials.ledger import Ledger
from dml_core.trials.spec import TrialRecord, TrialSpec
from tasks.sweep.nodes import NodeCount
from tasks.sweep.progress import ProgressTracker, SweepProgress
from tasks.sweep.restarts import Restarts

LOGGER = logging.getLogger(__name__)


class TrialSource(Protocol):
    """Yields trials one after the other, and learns how they ended."""

    def next(self) -> TrialSpec | None:
        """Returns the next trial, or None when there are no more."""

    def tell(self, record: TrialRecord) -> None:
        """Receives the record of a trial that has ended."""


class ListedTrials:
    """Trials that are known before the first one runs: grid and random search."""

    def __init__(self, specs: Iterable[TrialSpec]) -> None:
        self._specs = iter(specs)

    def next(self) -> TrialSpec | None:
        """Returns the next trial, or None when there are no more."""
        return next(self._specs, None)

    def tell(self, record: TrialRecord) -> None:
        """Does nothing: the list does not depend on results."""


MakeTrials = Callable[[Sequence[TrialRecord]], Iterable[TrialSpec]]
"""Returns trials from the records of the search so far."""


def _no_trials(_: Sequence[TrialRecord]) -> Iterable[TrialSpec]:
    return ()


class SearchThenRepeats:
    """The trials of a search and, when all of them have ended, the repeats of its winners."""

    def __init__(
        self,
        search: TrialSource,
        make_repeats: MakeTrials,
        *,
        extend: MakeTrials = _no_trials,
        max_rounds: int = 0,
    ) -> None:
        """Prepares both phases.

        Args:
            search: the trials of the first phase.
            make_repeats: returns the repeats.
            extend: returns a further round of the search, or nothing if none is needed.
            max_rounds: most further rounds.
        """
        self.is_exhausted = False
        self._search = search
        self._make_repeats = make_repeats
        self._extend = extend
        self._rounds_left = max_rounds
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
            if (spec := self._next_round()) is not None:
                return spec
            self._repeats = iter(self._make_repeats(self._records))
        repeat = next(self._repeats, None)
        self.is_exhausted = repeat is None
        return repeat

    def _next_round(self) -> TrialSpec | None:
        """Returns the first trial of a further round of the search; None if there is none."""
        if self._rounds_left == 0:
            return None
        self._rounds_left -= 1
        # Records in the order of their numbers: an order of arrival would not survive a restart.
        records = sorted(self._records, key=lambda record: record.spec.number)
        self._search = ListedTrials(self._extend(records))
        if (spec := self._search.next()) is not None:
            self._running.add(spec.trial_id)
        else:
            self._rounds_left = 0
        return spec

    def tell(self, record: TrialRecord) -> None:
        """Receives the record of a trial that has ended."""
        if record.spec.phase == "search":
            self._running.discard(record.spec.trial_id)
            self._records.append(record)
            self._search.tell(record)


PRUNED = "after epoch {epoch} its score {score:.4f} was behind the others of its arm."


def _ignore(*_: Any) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class SweepEvents:
    """The listeners of a sweep; all are called on the driver.

    The events of a trial that an earlier process ran are repeated from its start, so a listener
    that was killed misses nothing. It must accept an event that it has received before.
    """

    on_update: Callable[[SweepProgress], None] = _ignore
    on_trial_start: Callable[[TrialSpec], None] = _ignore
    on_epoch: Callable[[TrialSpec, Mapping[str, Any]], None] = _ignore
    on_trial_end: Callable[[TrialRecord], None] = _ignore


class Conductor:
    """Leads the trials of a sweep from their source to their records."""

    def __init__(
        self,
        source: SearchThenRepeats,
        ledger: Ledger,
        *,
        tracker: ProgressTracker,
        events: SweepEvents,
        halving: SuccessiveHalving | None = None,
        max_failed: int,
        max_restarts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares a sweep.

        Args:
            source: the trials.
            ledger: the study's record of them.
            tracker: counts their progress.
            events: the listeners.
            halving: prunes trials of the search; None prunes none.
            max_failed: the sweep stops when more trials failed.
            max_restarts: how often a trial resumes after the death of its worker.
            clock: returns seconds.
        """
        self.records: dict[str, TrialRecord] = {}
        self.failures: list[TrialRecord] = []
        self._source = source
        self._ledger = ledger
        self._tracker = tracker
        self._events = events
        self._halving = halving
        self._max_failed = max_failed
        self._restarts = Restarts(max_restarts)
        self._clock = clock
        self._epochs: dict[str, list[Mapping[str, Any]]] = {}
        self._looked_at: TrialSpec | None = None
        self._error: Exception | None = None
        self._running: dict[str, list[TrialSpec]] = {}
        """By key: the trial that runs, and others with the same key, which wait for it."""
        self._ready: deque[TrialSpec] = deque()
        """Trials that have waited for one with the same key and must run themselves."""
        self._elsewhere: deque[TrialSpec] = deque()
        """Trials that another process trains at the moment."""
        self._restarting: list[tuple[float, TrialSpec]] = []
        """Trials whose worker died, each with the time from which it may have another one."""

    @property
    def must_stop(self) -> bool:
        """Whether the sweep cannot continue."""
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
        """Whether no more trials will come; before that, there may be none for the moment.

        A trial that runs may come again, after the death of its worker.
        """
        is_empty = not (self._running or self._ready or self._elsewhere or self._restarting)
        return (self._source.is_exhausted and is_empty) or self.must_stop

    def has_next(self) -> bool:
        """Returns whether there is a trial to run."""
        self._looked_at = self.next()
        return self._looked_at is not None

    def next(self) -> TrialSpec | None:
        """Returns the next trial to run, or None; ended trials are passed to the listeners."""
        if self._looked_at is not None:
            looked_at, self._looked_at = self._looked_at, None
            return looked_at
        while not self.must_stop and (spec := self._take()) is not None:
            self._tracker.phase = spec.phase
            key = self._ledger.key(spec)
            if key in self._running:
                self._running[key].append(spec)
            elif not self._finish_if_ended(spec):
                self._running[key] = [spec]
                return spec
        return None

    def note_nodes(self, nodes: NodeCount) -> None:
        """Records the nodes of the cluster, which change while trials wait for them."""
        if nodes != self._tracker.nodes:
            self._tracker.nodes = nodes
            self._events.on_update(self._tracker.now())

    def start(self, spec: TrialSpec) -> None:
        """Records that a worker has begun a trial; a restarted one is not announced again."""
        self._restarts.begin(spec.trial_id)
        if spec.trial_id not in self._epochs:
            self._tracker.start(spec.trial_id)
            self._repeat_events(spec)
            self._update()

    def report(self, spec: TrialSpec, epoch: Mapping[str, Any]) -> bool:
        """Records an epoch and returns whether the trial continues."""
        self._tracker.report(spec.trial_id, epoch["epoch"] / spec.config.training.epochs)
        epochs = self._epochs.setdefault(spec.trial_id, [])
        # After a restart the last epochs come again, bit for bit the same, unless the trial was
        # started anew on another kind of device: then its earlier epochs no longer hold.
        earlier = [known for known in epochs if known["epoch"] < epoch["epoch"]]
        again = [known for known in epochs if known["epoch"] == epoch["epoch"]]
        if not again or repr(again[0].get("train_loss")) != repr(epoch.get("train_loss")):
            epochs[:] = [*earlier, epoch]
            self._events.on_epoch(spec, epoch)
        self._update()
        return self._survives(spec, epochs)

    def judges(self, spec: TrialSpec) -> bool:
        """Returns whether a trial may be pruned after any epoch."""
        return self._halving is not None and spec.phase == "search"

    def end(self, spec: TrialSpec, *, error: str = "") -> None:
        """Records that a worker has left a trial; one without a result was stopped, and is kept.

        Args:
            spec: the trial.
            error: why no worker could end it, if that is known.
        """
        if not error:
            self._judge_recorded(spec)
        record = self._ledger.end(spec, error=error)
        if record is not None and spec.trial_id not in self.records:
            self._finish(record)
        _, *waiting = self._running.pop(self._ledger.key(spec), [spec])
        self._ready += [other for other in waiting if not self._finish_if_ended(other)]

    def lose_worker(self, spec: TrialSpec, *, why: str) -> None:
        """Records that a trial's worker died; another one gets the trial, or the trial fails.

        Args:
            spec: the trial.
            why: the reason of the death, in a line; empty if it is unknown.
        """
        if spec.trial_id in self.records:
            return
        verdict = self._restarts.judge(spec.trial_id, why=why)
        if verdict.is_final:
            self.end(spec, error=verdict.message)
            return
        LOGGER.warning(
            "trial %s: its worker died (%s). %s",
            spec.trial_id, why or "the reason is unknown", verdict.message,
        )  # fmt: skip
        _, *waiting = self._running.pop(self._ledger.key(spec), [spec])
        self._ready += waiting
        self._restarting.append((self._clock() + verdict.pause_seconds, spec))

    def _take(self) -> TrialSpec | None:
        """Returns the next trial to look at; those that another process trains come last."""
        for place, (due, restarted) in enumerate(self._restarting):
            if due <= self._clock():
                del self._restarting[place]
                return restarted
        if self._ready:
            return self._ready.popleft()
        while (spec := self._source.next()) is not None:
            journal = self._ledger.journal(spec)
            if journal.key in self._running or not journal.is_locked():
                return spec
            self._elsewhere.append(spec)
        # Its worker waits for the other process to end.
        return self._elsewhere.popleft() if self._elsewhere else None

    def _finish_if_ended(self, spec: TrialSpec) -> bool:
        """Requests a trial; returns whether it has ended, here or in another study."""
        journal = self._ledger.open(spec)
        self._judge_recorded(spec)
        record = self._ledger.find(spec)
        if record is None:
            return False
        if record.status == "finished" and not _is_usable(journal, spec):
            return False
        self._repeat_events(spec, last=record.epochs)
        self._finish(record)
        return True

    def _repeat_events(self, spec: TrialSpec, *, last: int | None = None) -> None:
        self._events.on_trial_start(spec)
        recorded = self._ledger.journal(spec).epochs()
        kept = [epoch for epoch in recorded if last is None or epoch["epoch"] <= last]
        self._epochs[spec.trial_id] = list(kept)
        for epoch in kept:
            self._events.on_epoch(spec, epoch)

    def _finish(self, record: TrialRecord) -> None:
        self.records[record.spec.trial_id] = record
        self._epochs.pop(record.spec.trial_id, None)
        if record.status == "failed":
            self.failures.append(record)
        self._source.tell(record)
        self._tracker.end(record)
        self._events.on_trial_end(record)
        self._update()

    def _judge_recorded(self, spec: TrialSpec) -> None:
        """Judges the epochs in the journal, which another study may have trained."""
        if self.judges(spec) and self._ledger.find_own_end(spec) is None:
            epochs = self._ledger.journal(spec).epochs()
            for count in range(1, len(epochs) + 1):
                if not self._survives(spec, epochs[:count]):
                    return

    def _survives(self, spec: TrialSpec, epochs: Sequence[Mapping[str, Any]]) -> bool:
        """Returns whether a trial continues after its last epoch; records a verdict."""
        if self._halving is None or not self.judges(spec):
            return True
        group, score = group_of(spec), selected_score(epochs, spec.config)
        epoch, num_epochs = int(epochs[-1]["epoch"]), spec.config.training.epochs
        is_new = self._halving.is_at_rung(group, spec.trial_id, epoch=epoch, num_epochs=num_epochs)
        survives = self._halving.judge(
            group, spec.trial_id, epoch=epoch, num_epochs=num_epochs, score=score
        )
        if not survives:
            # Written before the trial is stopped, so that a kill in between loses no verdict.
            reason = PRUNED.format(epoch=epoch, score=score)
            self._ledger.prune(spec, epoch=epoch, reason=reason)
        elif is_new and score is not None:
            self._ledger.judge(spec, epoch=epoch, score=score)
        return survives

    def _update(self) -> None:
        self._events.on_update(self._tracker.now())


def _is_usable(journal: Journal, spec: TrialSpec) -> bool:
    # Late: it imports torch, which a sweep without ended trials needs only at its end.
    from dml_core.training.in_folder import has_usable_result

    return has_usable_result(journal, spec)


def group_of(spec: TrialSpec) -> str:
    """Returns the group in which a trial is judged: its arm in the same fold."""
    return f"{spec.arm} fold {spec.config.data.fold}"


def refill_rungs(halving: SuccessiveHalving, ledger: Ledger) -> None:
    """Enters the scores of earlier processes, so that a resumed sweep prunes as an unbroken one."""
    for judged in ledger.judged():
        halving.note(
            group_of(judged.spec),
            judged.spec.trial_id,
            epoch=judged.epoch,
            num_epochs=judged.spec.config.training.epochs,
            score=judged.score,
        )
