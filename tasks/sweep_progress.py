"""How far a sweep has come, and how long it still takes."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from dml_core.studies.trial_spec import TrialRecord


@dataclass(frozen=True)
class SweepProgress:
    """A sweep at one moment."""

    study: str
    stage: str
    """search or repeat."""
    running: int
    done: int
    """Trials that ended, however they did."""
    total: int
    """Trials of the search and the repeats together."""
    pruned: int
    diverged: int
    collapsed: int
    failed: int
    best: dict[str, float] = field(default_factory=dict)
    """Best validation score of each arm so far."""
    seconds_left: float | None = None
    """Foreseen; None before the first trial ended."""

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return asdict(self)


class ProgressTracker:
    """Counts trials as they start and end, and measures how long they take."""

    def __init__(
        self,
        study: str,
        *,
        total: int,
        num_concurrent: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage = "search"
        self.total = total
        self.num_concurrent = num_concurrent
        self._study = study
        self._clock = clock
        self._started: dict[str, float] = {}
        self._durations: list[float] = []
        self._ended: dict[str, str] = {}
        self._best: dict[str, float] = {}

    def start(self, trial_id: str) -> None:
        """Notes that a trial runs; one that was restarted keeps its first start."""
        self._started.setdefault(trial_id, self._clock())

    def end(self, record: TrialRecord) -> None:
        """Notes how a trial ended."""
        begun = self._started.pop(record.spec.trial_id, None)
        if begun is not None:
            self._durations.append(self._clock() - begun)
        self._ended[record.spec.trial_id] = record.status
        if record.status == "finished" and record.score is not None:
            arm = record.spec.arm
            self._best[arm] = max(record.score, self._best.get(arm, record.score))

    def now(self) -> SweepProgress:
        """Returns the present state."""
        counts = Counter(self._ended.values())
        return SweepProgress(
            study=self._study,
            stage=self.stage,
            running=len(self._started),
            done=len(self._ended),
            total=self.total,
            pruned=counts["pruned"],
            diverged=counts["diverged"],
            collapsed=counts["collapsed"],
            failed=counts["failed"],
            best=dict(self._best),
            seconds_left=self._estimate_seconds_left(),
        )

    def _estimate_seconds_left(self) -> float | None:
        left = self.total - len(self._ended)
        if left <= 0:
            return 0.0
        if not self._durations:
            return None
        each = fmean(self._durations)
        # A trial that runs longer than the others still counts for nothing below zero.
        spent = sum(min(self._clock() - begun, each) for begun in self._started.values())
        lanes = max(1, min(self.num_concurrent, left))
        return max(0.0, (left * each - spent) / lanes)
