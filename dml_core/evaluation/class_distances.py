"""Measures how near the classes come to each other."""

# B = rows of a block, C = classes, D = embedding dim, M = images of the classes, N = images

import numpy as np

from dml_core.evaluation.arrays import DoubleArray, FloatArray, Frame, IntArray, Metric
from dml_core.evaluation.neighbors import query_blocks


def smallest_class_distances(
    embeddings: FloatArray,
    labels: IntArray,
    *,
    max_classes: int,
    metric: Metric,
    block_size: int = 1024,
) -> DoubleArray:
    """Returns the (C, C) distances of the nearest two images of each two classes.

    Under cosine they are distances on the unit sphere. The diagonal is 0.

    Args:
        embeddings: (N, D) finite embeddings.
        labels: (N,) class ids.
        max_classes: C, the classes with the smallest ids; fewer where there are fewer.
        metric: how embeddings are compared.
        block_size: most images at once; bounds the memory.
    """
    classes = np.unique(labels)[:max_classes]
    chosen = np.flatnonzero(np.isin(labels, classes))
    # Sorted by class, so that each class is a run of columns.
    chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    codes = np.searchsorted(classes, labels[chosen])
    frame = Frame.around(embeddings[chosen], metric=metric)
    vectors = frame.place(embeddings[chosen]).astype(np.float64)
    squared = _smallest_squared(vectors, codes, num_classes=len(classes), block_size=block_size)
    np.fill_diagonal(squared, 0.0)
    # Rounding may leave a negative trace between equal vectors.
    distances: DoubleArray = np.sqrt(squared.clip(min=0.0)) * frame.scale
    return distances


def _smallest_squared(
    vectors: DoubleArray, codes: IntArray, *, num_classes: int, block_size: int
) -> DoubleArray:
    """(C, C) smallest squared distances, from (M, D) vectors sorted by their (M,) classes."""
    starts = np.searchsorted(codes, np.arange(num_classes))
    lengths = np.einsum("md,md->m", vectors, vectors)
    smallest = np.full((num_classes, num_classes), np.inf)
    for block in query_blocks(len(vectors), block_size=block_size, row_length=len(vectors)):
        squared = lengths[block, None] + lengths - 2 * vectors[block] @ vectors.T
        by_class = np.minimum.reduceat(squared, starts, axis=1)
        np.minimum.at(smallest, codes[block], by_class)
    return smallest
