"""Shows that a step works: a bar in a terminal, a plain line every few seconds elsewhere.

Nothing appears for a step that ends within two seconds. All of it goes to standard error, so that a
command's output stays clean.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

QUIET_SECONDS = 2.0
"""Shorter steps show nothing."""
SECONDS_BETWEEN_LINES = 5.0
_REFRESH_SECONDS = 0.25


@dataclass
class StepProgress:
    """How far a step is; a step without numbers shows that it still works."""

    what: str
    done: int = 0
    total: int = 0
    detail: str = ""
    started: float = field(default_factory=time.monotonic)

    def count(self, done: int, total: int) -> None:
        """Sets how many of how many parts are done."""
        self.done, self.total = done, total

    def say(self, detail: str) -> None:
        """Sets what is done now, in a few words."""
        self.detail, self.done, self.total = detail, 0, 0

    def describe(self, now: float) -> str:
        """Returns the state as one line, with the seconds since the start."""
        counted = f"{self.done:,} of {self.total:,}" if self.total else ""
        state = ", ".join(filter(None, (self.detail, counted, f"{now - self.started:.0f} s")))
        return f"{self.what}: {state}"


@contextmanager
def shown_step(what: str, *, stream: TextIO | None = None) -> Iterator[StepProgress]:
    """Shows the progress of the block, which sets it through the object that it gets.

    Args:
        what: the step, such as `evaluating main`.
        stream: standard error by default.
    """
    progress = StepProgress(what)
    file = stream or sys.stderr
    show = _show_bar if file.isatty() else _print_lines
    ended = threading.Event()
    # A thread: the work itself may be one long call of a library.
    thread = threading.Thread(target=show, args=(progress, file, ended.wait), daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()


def _print_lines(progress: StepProgress, file: TextIO, has_ended: Callable[[float], bool]) -> None:
    pause = QUIET_SECONDS
    while not has_ended(pause):
        pause = SECONDS_BETWEEN_LINES
        # A reader that has gone away must not end the step.
        try:
            file.write(progress.describe(time.monotonic()) + "\n")
            file.flush()
        except (OSError, ValueError):
            return


def _show_bar(progress: StepProgress, file: TextIO, has_ended: Callable[[float], bool]) -> None:
    if has_ended(QUIET_SECONDS):
        return
    # Late: rich takes a tenth of a second to import.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=file), transient=True) as bar:
        task = bar.add_task(progress.what, total=None)
        while True:
            bar.update(
                task,
                description=progress.describe(time.monotonic()),
                completed=progress.done,
                total=progress.total or None,
            )
            if has_ended(_REFRESH_SECONDS):
                return
