"""Independent random streams, one for each use of randomness.

A stream is identified by (seed, purpose, epoch, step). Streams share no state, so an added draw
changes no other stream, and a resumed run needs no saved state.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(seed: int, purpose: str, epoch: int, step: int) -> np.random.SeedSequence:
    for name, number in (("seed", seed), ("epoch", epoch), ("step", step)):
        if not 0 <= number < 2**32:
            raise ValueError(f"{name} must be from 0 to 4294967295. Got {number}.")
    # All parts have a fixed width, so different names give different sequences of words.
    digest = hashlib.sha256(purpose.encode()).digest()
    words = np.frombuffer(digest[:16], dtype="<u4").tolist()
    return np.random.SeedSequence([seed, *words, epoch, step])


def numpy_stream(seed: int, purpose: str, *, epoch: int = 0, step: int = 0) -> np.random.Generator:
    """Returns the numpy generator of a stream."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, epoch, step)))


def torch_stream(seed: int, purpose: str, *, epoch: int = 0, step: int = 0) -> "torch.Generator":
    """Returns the torch CPU generator of a stream."""
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, purpose, epoch=epoch, step=step))


def stream_seed(seed: int, purpose: str, *, epoch: int = 0, step: int = 0) -> int:
    """Returns the 63-bit seed of a stream, for libraries that take only a number."""
    low, high = _entropy(seed, purpose, epoch, step).generate_state(2, dtype=np.uint32).tolist()
    return int(high % 2**31) * 2**32 + int(low)
