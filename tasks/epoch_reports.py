"""Sends the reports of short epochs together, since each sending costs more than such an epoch."""

import time
from collections.abc import Callable
from typing import Any

Epoch = dict[str, Any]

SECONDS_BETWEEN = 1.0
"""Nobody looks more often; what is not sent yet is in the trial's folder already."""


class EpochReports:
    """Holds an epoch's report back until there is time for it, or the trial's end has come."""

    def __init__(
        self,
        send: Callable[[list[Epoch]], None],
        *,
        at_once: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the sending.

        Args:
            send: gets the reports of one or more epochs, in their order.
            at_once: sends each epoch by itself, for a trial that may be stopped after any.
            clock: tells the seconds.
        """
        self._send = send
        self._at_once = at_once
        self._clock = clock
        self._sent = clock()
        self._waiting: list[Epoch] = []

    def add(self, epoch: Epoch) -> None:
        """Takes an epoch's report, and sends it with those before it where that is due."""
        self._waiting.append(epoch)
        is_last = epoch["epoch"] == epoch["num_epochs"]
        if self._at_once or is_last or self._clock() - self._sent >= SECONDS_BETWEEN:
            self.flush()

    def flush(self) -> None:
        """Sends what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._send(waiting)
            self._sent = self._clock()
