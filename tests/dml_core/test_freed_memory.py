"""Freed memory that is kept costs no page faults when it is asked for again."""

import subprocess
import sys

PROGRAM = """
import resource
import numpy as np
from dml_core.freed_memory import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
def touch():
    for _ in range(20):
        np.empty(4 << 20, np.uint8)[::4096] = 1
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_faults(*, keep: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep)],
        capture_output=True,
        text=True,
        check=True,
        # A limit that grows with the first large block would hide the difference.
        env={"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"},
    )
    return int(done.stdout)


def test_blocks_are_used_again_where_freed_memory_is_kept():
    assert count_faults(keep=False) > 1000
    assert count_faults(keep=True) < 100
