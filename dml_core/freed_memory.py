"""Keeps freed memory in the process, where glibc would give it back to the kernel."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of malloc's settings in glibc's malloc.h."""
_KEPT_BYTES = 1024**3


def keep_freed_memory() -> bool:
    """Lets malloc use a freed block again instead of returning it; tells whether that could be set.

    A training step frees and asks for the same large blocks again and again. By default each of
    them is mapped anew, and the kernel clears its pages: a tenth of a small network's step.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    # Other C libraries lack it, and have other habits.
    if set_option is None:
        return False
    return all(set_option(option, _KEPT_BYTES) for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
