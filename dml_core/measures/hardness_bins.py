"""Averages a value over bins of another, the same bins for every model."""

# P = pairs

import numpy as np

from dml_core.evaluation.arrays import DoubleArray

Curve = list[tuple[float, float]]

BIN_WIDTH = 0.05
"""Of a cosine; fixed, so that the curves of different models meet at the same places."""
MIN_PAIRS = 5
"""Fewer pairs than these say nothing of a bin."""


def average_by_bin(
    hardness: DoubleArray,
    values: DoubleArray,
    *,
    width: float = BIN_WIDTH,
    min_pairs: int = MIN_PAIRS,
) -> Curve:
    """Returns (middle of the bin, mean value) for each bin with enough pairs, in rising order.

    Args:
        hardness: (P,) what is binned; bin n holds n * width up to (n + 1) * width.
        values: (P,) what is averaged.
        width: of a bin.
        min_pairs: bins with fewer are left out.
    """
    bins, codes, counts = np.unique(
        np.floor(hardness / width).astype(np.int64), return_inverse=True, return_counts=True
    )
    means = np.bincount(codes, weights=values, minlength=len(bins)) / np.maximum(counts, 1)
    return [
        (round((int(number) + 0.5) * width, 6), float(mean))
        for number, mean, count in zip(bins, means, counts, strict=True)
        if count >= min_pairs
    ]
