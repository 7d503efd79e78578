"""Ends a process that no longer gets anywhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_SCRIPT = Path(__file__).with_name("watchdog_process.py")


class Watchdog:
    """Kills this process when nothing happened for too long.

    A hung training cannot be asked to stop, so its process has to go; whoever started it sees a
    dead worker. A process of its own does that: a thread would stand still with a process that is
    stopped, or that holds the interpreter's lock in a library.
    """

    def __init__(self, timeout_seconds: float, *, note: Path, reason: str) -> None:
        """Prepares the watch.

        Args:
            timeout_seconds: longest time between two pauses; 0 watches nothing.
            note: file that gets the reason before the process ends.
            reason: what to write there.
        """
        self._timeout_seconds = timeout_seconds
        self._note = note
        self._reason = reason
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch within the block, and begins the waiting anew after it."""
        self._sign(b"p")
        try:
            yield
        finally:
            self._sign(b"g")

    def __enter__(self) -> Self:
        if self._timeout_seconds > 0:
            watched = [str(os.getpid()), str(self._timeout_seconds), str(self._note)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SCRIPT), *watched, self._reason],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            # Closing its input tells the watchdog that there is nothing more to watch.
            self._process.communicate()
            self._process = None

    def _sign(self, sign: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            # A watchdog that somebody ended is no reason to end the training.
            with suppress(OSError):
                self._process.stdin.write(sign)
