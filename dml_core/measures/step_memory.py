"""Tells how much memory a piece of work needs at its highest, to the byte."""

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

_ALLOCATION = "[memory]"


def measure_peak_bytes(work: Callable[[], object], *, device: torch.device) -> int:
    """Returns the most bytes of tensors that were held at one time beyond those before the work.

    On a CPU torch's own allocations are counted one by one. The resident size of the process
    would also hold what earlier work left in the allocator, so that one arm would hide another.
    """
    if device.type == "cuda":
        return _measure_on_gpu(work, device)
    # Otherwise the profiler's library writes to stderr that it looked for a GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    results = recorded.profiler.kineto_results
    changes = [event for event in results.events() if event.name() == _ALLOCATION]
    held = highest = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        highest = max(highest, held)
    return highest


def _measure_on_gpu(work: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
