"""Independent random streams, one for each use of chance.

A stream is named by (seed, purpose, epoch, step). Nothing is carried from one use to the next,
so a draw added in one place moves nothing elsewhere, and a resumed run needs no saved state.
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
    # Every part has a fixed width, so no two names can spell the same sequence of words.
    digest = hashlib.sha256(purpose.encode()).digest()
    words = np.frombuffer(digest[:16], dtype="<u4").tolist()
    return np.random.SeedSequence([seed, *words, epoch, step])


def numpy_stream(seed: int, purpose: str, *, epoch: int = 0, step: int = 0) -> np.random.Generator:
    """Returns numpy's generator of the stream with this name."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, epoch, step)))


def torch_stream(seed: int, purpose: str, *, epoch: int = 0, step: int = 0) -> "torch.Generator":
    """Returns a CPU torch generator of the stream with this name."""
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, purpose, epoch=epoch, step=step))


def stream_seed(seed: int, purpose: str, *, epoch: int = 0, step: int = 0) -> int:
    """Returns a 63-bit seed of the stream, for libraries that take only a number."""
    low, high = _entropy(seed, purpose, epoch, step).generate_state(2, dtype=np.uint32).tolist()
    return int(high % 2**31) * 2**32 + int(low)
