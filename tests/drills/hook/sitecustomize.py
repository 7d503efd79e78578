"""Python loads this at the start of some drills' processes: eats memory, sets the clock back."""

import ctypes
import datetime
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("DML_DRILL_HOOK", "")
CLOCK_SECONDS = int(os.environ.get("DML_DRILL_CLOCK") or 0)
PAUSE_SECONDS = 0.1
LARGEST = 64 * 2**20
SMALLEST = 2**10


def eat_on_demand() -> None:
    """Waits for a file with this process's pid in its name, and then allocates all memory."""
    # Allocated now, since later there is no memory for it.
    eaten: list[bytearray] = []
    while not Path(FOLDER, f"drill-eat-{os.getpid()}").exists():
        time.sleep(PAUSE_SECONDS)
    while True:
        size = LARGEST
        while size >= SMALLEST:
            try:
                eaten.append(bytearray(size))
            except MemoryError:
                size //= 2
        time.sleep(PAUSE_SECONDS)


def shift_datetime(now: Callable[[], float]) -> None:
    """Makes datetime read another clock; its class is written in C, and many libraries use it."""
    kind = datetime.datetime

    def shifted_now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(now(), tz)

    def shifted_utcnow(cls: type[datetime.datetime]) -> Any:
        return cls.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

    # The class refuses changes; the mapping behind it does not.
    content = gc.get_referents(kind.__dict__)[0]
    content["now"], content["utcnow"] = classmethod(shifted_now), classmethod(shifted_utcnow)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def set_clock_back(seconds: int) -> None:
    """Shifts every Python clock that returns the time of day."""
    real, real_ns, gmtime, localtime = time.time, time.time_ns, time.gmtime, time.localtime
    strftime = time.strftime

    def now() -> float:
        return real() - seconds

    time.time = now
    time.time_ns = lambda: real_ns() - seconds * 10**9
    time.gmtime = lambda at=None: gmtime(now() if at is None else at)
    time.localtime = lambda at=None: localtime(now() if at is None else at)
    time.strftime = lambda form, at=None: strftime(form, localtime(now()) if at is None else at)
    shift_datetime(now)


if CLOCK_SECONDS:
    set_clock_back(CLOCK_SECONDS)
if FOLDER:
    threading.Thread(target=eat_on_demand, daemon=True).start()
