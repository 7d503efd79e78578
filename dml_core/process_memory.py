"""Memory settings of a training process: keep freed memory, use large pages."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Constants of glibc's malloc.h."""
_KEPT_BYTES = 1024**3
_LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Environment variable that torch reads before its first large allocation."""


def prepare_memory() -> None:
    """Applies both settings to this process; results do not change."""
    keep_freed_memory()
    use_large_pages()


def keep_freed_memory() -> bool:
    """Makes malloc reuse freed blocks instead of returning them; returns whether this succeeded.

    A training step frees and requests the same large blocks repeatedly. By default each is mapped
    anew and the kernel clears its pages, which takes a tenth of a small network's step.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    # Other C libraries do not have it.
    if set_option is None:
        return False
    return all(set_option(option, _KEPT_BYTES) for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


def use_large_pages() -> None:
    """Makes torch request pages of 2 MiB for larger tensors, unless the environment says otherwise.

    A million proxies and their moments take 1.5 GB, and a step reads scattered rows. With small
    pages, the page lookup takes as long as reading the row.
    """
    os.environ.setdefault(_LARGE_PAGES, "1")
