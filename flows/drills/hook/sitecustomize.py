"""Read first by every Python process of some drills: eats memory on demand, sets the clock back."""

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


def eat_when_told() -> None:
    """Waits for a file with this process's number in its name, and then takes all memory."""
    # Held here, since nothing may be allocated later.
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
    """Lets datetime ask another clock; its class is written in C and used by many libraries."""
    kind = datetime.datetime

    def tell_now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(now(), tz)

    def tell_utcnow(cls: type[datetime.datetime]) -> Any:
        return cls.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

    # The class itself refuses changes; the mapping behind it does not.
    content = gc.get_referents(kind.__dict__)[0]
    content["now"], content["utcnow"] = classmethod(tell_now), classmethod(tell_utcnow)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def set_clock_back(seconds: int) -> None:
    """Shifts every clock of Python that tells the time of day."""
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
    threading.Thread(target=eat_when_told, daemon=True).start()
