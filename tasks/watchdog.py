"""Ends a process that no longer gets anywhere."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self


class Watchdog:
    """Ends the process when nothing happened for too long.

    A hung training cannot be asked to stop, so its process has to go; whoever started it sees a
    dead worker.
    """

    def __init__(
        self,
        timeout_seconds: float,
        *,
        before_exit: Callable[[], None],
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        """Prepares the watch.

        Args:
            timeout_seconds: longest time between two pauses; 0 watches nothing.
            before_exit: called before the process ends.
            exit_process: ends the process.
        """
        self._timeout_seconds = timeout_seconds
        self._before_exit = before_exit
        self._exit_process = exit_process
        self._touched = threading.Event()
        self._is_over = False
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch within the block, and begins the waiting anew after it."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
            self._touched.set()

    def __enter__(self) -> Self:
        if self._timeout_seconds > 0:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._touched.set()

    def _watch(self) -> None:
        while self._touched.wait(self._timeout_seconds) or self._is_paused:
            if self._is_over:
                return
            self._touched.clear()
        self._before_exit()
        self._exit_process(1)
