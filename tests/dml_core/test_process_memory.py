"""Freed memory that is kept costs no page faults; large tensors lie in large pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = """
import resource
import numpy as np
from dml_core.process_memory import keep_freed_memory
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
PAGES = """
import pathlib
import torch
from dml_core.process_memory import prepare_memory
prepare_memory()
kept = torch.ones(16 << 20)
lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("AnonHugePages")))
"""
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def run(program: str, **environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return int(done.stdout)


def count_faults(*, keep: bool) -> int:
    # A limit that grows with the first large block would hide the difference.
    limits = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    return run(FAULTS.format(keep=keep), **limits)


def test_blocks_are_used_again_where_freed_memory_is_kept():
    assert count_faults(keep=False) > 1000
    assert count_faults(keep=True) < 100


@pytest.mark.skipif(
    not SWITCH.exists() or "[madvise]" not in SWITCH.read_text(encoding="ascii"),
    reason="this system gives large pages to everybody or to nobody",
)
def test_a_large_tensor_lies_in_large_pages_unless_the_user_forbids_it():
    half_of_it_kib = 32 * 1024
    assert run(PAGES, **os.environ) > half_of_it_kib
    assert run(PAGES, **{**os.environ, "THP_MEM_ALLOC_ENABLE": "0"}) < half_of_it_kib
