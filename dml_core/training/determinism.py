"""Fixes threads and torch's global random state, so that results depend on the seed alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import faiss
import torch

from dml_core.seeding import stream_seed


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Runs torch and faiss with `count` threads, and restores the previous numbers."""
    torch_threads, faiss_threads = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(count)
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        faiss.omp_set_num_threads(faiss_threads)


@contextmanager
def seeded_torch(seed: int, purpose: str, *, epoch: int = 0) -> Iterator[None]:
    """Seeds torch's global generators from a named stream, and restores their state at exit.

    For operations that take no generator: weight initialisation, dropout.
    """
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(stream_seed(seed, purpose, epoch=epoch))
        yield
