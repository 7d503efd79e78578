"""How a process that trains gets its memory from the system: kept when freed, in large pages."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of malloc's settings in glibc's malloc.h."""
_KEPT_BYTES = 1024**3
_LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""What torch looks up in the environment before its first large block."""


def prepare_memory() -> None:
    """Sets how this process gets memory; what it computes stays the same."""
    keep_freed_memory()
    use_large_pages()


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


def use_large_pages() -> None:
    """Lets torch ask for pages of 2 MiB for what is larger, if nobody has decided that otherwise.

    A million proxies and their moments take a gigabyte and a half, and a step touches rows all
    over it: with small pages, finding a row's page takes as long as reading the row.
    """
    os.environ.setdefault(_LARGE_PAGES, "1")
