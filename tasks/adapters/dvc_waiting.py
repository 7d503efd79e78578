"""Waits for a DVC project that another process has locked."""

import time
from collections.abc import Callable
from typing import TypeVar

from tasks.adapters.dvc_session import DvcError, DvcLocked

Result = TypeVar("Result")
PAUSE_SECONDS = 0.5
SECONDS_BETWEEN_MESSAGES = 30.0


def wait_while_locked(
    work: Callable[[], Result],
    *,
    timeout_seconds: float,
    on_wait: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Returns what the work returns, tried again until the project is free.

    DVC itself gives up after three seconds, and the commit of a large dataset takes longer. The
    work begins anew each time, so that it reads what the former holder wrote.

    Args:
        work: what needs the project; must be safe to begin again.
        timeout_seconds: how long to wait before giving up.
        on_wait: gets who holds the project and how long we have waited, now and then.
        clock: tells the time.

    Raises:
        DvcError: when the project stays locked; with its holder and the time waited.
    """
    started = clock()
    told = -SECONDS_BETWEEN_MESSAGES
    while True:
        try:
            return work()
        except DvcLocked as locked:
            waited = clock() - started
            if waited >= timeout_seconds:
                raise DvcError(
                    f"{locked} We waited {waited:.0f} s, and {timeout_seconds:.0f} s are the "
                    "limit. What the run has done is kept."
                ) from locked
            if waited - told >= SECONDS_BETWEEN_MESSAGES:
                told = waited
                on_wait(f"waiting since {waited:.0f} s: {locked.reason}")
        time.sleep(PAUSE_SECONDS)
