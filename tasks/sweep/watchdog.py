"""Kills a process that hangs.

`faulthandler.dump_traceback_later(exit=True)` does not keep this promise: its timer runs inside
the process, and a stopped process (SIGSTOP) runs no timer. So the watchdog is its own process,
which runs this file as a program.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

_PAUSE, _ALIVE = b"p", b"g"


class Watchdog:
    """Kills this process when it reports no progress for too long.

    Whoever started the process then sees a dead worker.
    """

    def __init__(self, timeout_seconds: float, *, note: Path, reason: str) -> None:
        """Prepares the watch.

        Args:
            timeout_seconds: longest time between two pauses; 0 watches nothing.
            note: file that gets the reason before the process is killed.
            reason: content of that file.
        """
        self._timeout_seconds = timeout_seconds
        self._note = note
        self._reason = reason
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock within the block and restarts it from zero afterwards."""
        self._signal(_PAUSE)
        try:
            yield
        finally:
            self._signal(_ALIVE)

    def __enter__(self) -> Self:
        if self._timeout_seconds > 0:
            watched = [str(os.getpid()), str(self._timeout_seconds), str(self._note)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *watched, self._reason],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # The watchdog ends when its input is closed.
            self._process.communicate()
            self._process = None

    def _signal(self, sign: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            # The training continues without a watchdog that was killed.
            with suppress(OSError):
                self._process.stdin.write(sign)


def watch(pid: int, seconds: float, note: Path, reason: str) -> None:
    """Watches a process until standard input is closed or no sign comes for too long.

    Args:
        pid: the process, which has started this one.
        seconds: longest time between two signs.
        note: file that gets the reason before the process is killed.
        reason: content of that file.
    """
    is_paused = False
    while select.select([0], [], [], None if is_paused else seconds)[0]:
        signs = os.read(0, 4096)
        if not signs:
            return
        is_paused = signs.endswith(_PAUSE)
    # If the parent is gone, its number may belong to another process.
    if os.getppid() == pid:
        # A node without the driver's folder cannot leave it.
        with suppress(OSError):
            note.write_text(reason, encoding="utf-8")
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
