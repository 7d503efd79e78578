"""The progress of a sweep, the time that it still takes, and the live table."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dml_core.trials.spec import TrialRecord
from tasks.sweep.nodes import NodeCount


@dataclass(frozen=True)
class SweepProgress:
    """A sweep at one moment."""

    study: str
    phase: str
    """search or repeat."""
    running: int
    done: int
    """Trials that have ended, with any status."""
    total: int
    """Trials of the search and the repeats together."""
    pruned: int
    diverged: int
    collapsed: int
    failed: int
    best: dict[str, float] = field(default_factory=dict)
    """Best validation score of each arm so far."""
    seconds_left: float | None = None
    """An estimate; None before a trial has ended or reported two epochs."""
    nodes: int = 0
    """Nodes of a joined cluster that can run trials; 0 if they are not counted."""
    nodes_requested: int = 0
    """Nodes that the cluster's autoscaler starts at the moment."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the progress as plain values."""
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
        self.phase = "search"
        self.total = total
        self.num_concurrent = num_concurrent
        self._study = study
        self._clock = clock
        self._started: dict[str, float] = {}
        self._reports: dict[str, list[tuple[float, float]]] = {}
        """By running trial: time and done share of its first and its newest report."""
        # Sums instead of lists: a look at the progress must cost the same after 10,000 trials.
        self._timed, self._timed_seconds = 0, 0.0
        self._ended: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._best: dict[str, float] = {}
        self.nodes: NodeCount | None = None
        """Of a joined cluster; None on this machine alone."""

    def start(self, trial_id: str) -> None:
        """Records that a trial runs; a restarted one keeps its first start."""
        self._started.setdefault(trial_id, self._clock())

    def report(self, trial_id: str, done_share: float) -> None:
        """Records how much of its training a running trial has done."""
        first = self._reports.get(trial_id, [])[:1]
        self._reports[trial_id] = [*first, (self._clock(), done_share)]

    def end(self, record: TrialRecord) -> None:
        """Records how a trial ended."""
        begun = self._started.pop(record.spec.trial_id, None)
        self._reports.pop(record.spec.trial_id, None)
        if begun is not None:
            self._timed += 1
            self._timed_seconds += self._clock() - begun
        self._counts[self._ended.get(record.spec.trial_id, "")] -= 1
        self._counts[record.status] += 1
        self._ended[record.spec.trial_id] = record.status
        if record.status == "finished" and record.score is not None:
            arm = record.spec.arm
            self._best[arm] = max(record.score, self._best.get(arm, record.score))

    def count(self) -> tuple[int, int]:
        """Returns how many trials have ended, and how many there are."""
        return len(self._ended), self.total

    def now(self) -> SweepProgress:
        """Returns the present state."""
        counts = self._counts
        return SweepProgress(
            study=self._study,
            phase=self.phase,
            running=len(self._started),
            done=len(self._ended),
            total=self.total,
            pruned=counts["pruned"],
            diverged=counts["diverged"],
            collapsed=counts["collapsed"],
            failed=counts["failed"],
            best=dict(self._best),
            seconds_left=self._estimate_seconds_left(),
            nodes=self.nodes.there if self.nodes else 0,
            nodes_requested=self.nodes.requested if self.nodes else 0,
        )

    def _estimate_seconds_left(self) -> float | None:
        left = self.total - len(self._ended)
        if left <= 0:
            return 0.0
        each = self._timed_seconds / self._timed if self._timed else self._extrapolate()
        if each is None:
            return None
        # A trial that runs longer than the mean counts as almost done.
        spent = sum(min(self._clock() - begun, each) for begun in self._started.values())
        lanes = max(1, min(self.num_concurrent, left))
        return max(0.0, (left * each - spent) / lanes)

    def _extrapolate(self) -> float | None:
        """Returns the mean time of the running trials, from their pace between two reports."""
        pairs = [reports for reports in self._reports.values() if len(reports) == 2]
        paces = [(now - then) / (done - before) for (then, before), (now, done) in pairs
                 if done > before]  # fmt: skip
        return fmean(paces) if paces else None


Update = Callable[[SweepProgress], None]

SECONDS_BETWEEN_LINES = 15.0
MAX_ROWS = 15
"""The live table must fit on a screen."""


@contextmanager
def show_progress(
    mode: str = "auto",
    *,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Update]:
    """Yields a function that shows a sweep's progress whenever it is called.

    Args:
        mode: auto (a live table in a terminal, a line every 15 s elsewhere), json (a line of
            JSON for each change) or none.
        console: where to show it; standard error, so that a command's output stays clean, and
            standard output for json.
        clock: returns seconds; decides when the next line is due.
    """
    if mode not in ("auto", "json", "none"):
        raise ValueError(f"progress must be shown as auto, json or none. Got {mode!r}.")
    if mode == "none":
        yield lambda progress: None
    elif mode == "json":
        yield _print_json(console or Console(file=sys.stdout))
    else:
        console = console or Console(stderr=True)
        if not console.is_terminal:
            yield _print_lines(console, clock)
            return
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            yield lambda progress: live.update(make_table(progress))


def make_table(progress: SweepProgress) -> Group:
    """Returns a line of counts above a table of the best score of each arm, best arm first."""
    table = Table(show_edge=False)
    table.add_column("arm")
    table.add_column("best on validation", justify="right")
    ranked = sorted(progress.best.items(), key=lambda item: -item[1])
    for arm, score in ranked[:MAX_ROWS]:
        table.add_row(Text(arm), f"{score:.4f}")
    if len(ranked) > MAX_ROWS:
        table.add_row(f"and {len(ranked) - MAX_ROWS} more", "")
    return Group(Text(_headline(progress)), table)


def format_seconds(seconds: float | None) -> str:
    """Returns a duration in words."""
    if seconds is None:
        return "time left unknown"
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left" if seconds > 0 else "done"
    minutes = round(seconds / 60)
    return (
        f"about {minutes // 60} h {minutes % 60} min left"
        if minutes >= 60
        else (f"about {minutes} min left")
    )


def _headline(progress: SweepProgress) -> str:
    counts = [f"{progress.done} of {progress.total} done", f"{progress.running} running"]
    for name in ("pruned", "diverged", "collapsed", "failed"):
        if count := getattr(progress, name):
            counts.append(f"{count} {name}")
    if progress.nodes or progress.nodes_requested:
        counts.append(NodeCount(progress.nodes, progress.nodes_requested).describe())
    return f"{progress.study}, {progress.phase}: {', '.join(counts)}; " + format_seconds(
        progress.seconds_left
    )


def _print_json(console: Console) -> Update:
    def update(progress: SweepProgress) -> None:
        console.file.write(json.dumps(progress.as_dict()) + "\n")
        console.file.flush()

    return update


def _print_lines(console: Console, clock: Callable[[], float]) -> Update:
    last: list[float] = []

    def update(progress: SweepProgress) -> None:
        is_due = not last or clock() - last[-1] >= SECONDS_BETWEEN_LINES
        if is_due or progress.done == progress.total:
            last[:] = [clock()]
            best = max(progress.best.items(), key=lambda item: item[1], default=None)
            text = f"; best {best[0]} {best[1]:.4f}" if best else ""
            console.print(_headline(progress) + text, soft_wrap=True, markup=False, highlight=False)

    return update
