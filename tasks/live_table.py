"""Shows a running sweep: a live table in a terminal, lines elsewhere."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tasks.sweep_progress import SweepProgress

Update = Callable[[SweepProgress], None]
Mode = Literal["auto", "json", "none"]

SECONDS_BETWEEN_LINES = 15.0
MAX_ROWS = 15
"""A live table must fit a screen."""


@contextmanager
def show_progress(
    mode: str = "auto",
    *,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Update]:
    """Yields a function that shows a sweep's progress whenever it is called.

    Args:
        mode: auto (a live table in a terminal, a line now and then elsewhere), json (a line of
            JSON for each change) or none.
        console: where to show it; standard error, so that a command's output stays clean, and
            standard output for json.
        clock: tells when the next line is due.
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
    """Returns a line of counts over a table of the arms' best scores, the best arm first."""
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
    """Returns a duration as a person says it."""
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
    return f"{progress.study}, {progress.stage}: {', '.join(counts)}; " + format_seconds(
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
