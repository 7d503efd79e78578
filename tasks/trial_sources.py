"""Where the trials of a sweep come from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from dml_core.studies.trial_spec import TrialRecord, TrialSpec


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
        """Prepares both stages.

        Args:
            search: the first stage.
            make_repeats: returns the second stage's trials from the first one's records.
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
        if record.spec.stage == "search":
            self._running.discard(record.spec.trial_id)
            self._records.append(record)
            self._search.tell(record)
