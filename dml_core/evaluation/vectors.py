"""Moves embeddings to a frame in which float32 distances are safe to compare."""

# N = images, D = embedding dim

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dml_core.evaluation.arrays import DoubleArray, FloatArray

Metric = Literal["cosine", "euclidean"]

ROWS_AT_ONCE = 4096
"""Rows that are held in float64 at a time."""


@dataclass(frozen=True)
class Frame:
    """A change of the vectors that keeps the order of the distances.

    Cosine: every vector gets unit length; a zero vector stays zero and is equally far from all.
    Euclidean: the mean of the gallery becomes the origin and the largest entry at most 1. faiss
    computes |x|² + |y|² - 2xy in large searches, which loses all digits when vectors share a
    large offset, and overflows for large ones.
    """

    metric: Metric
    offset: DoubleArray
    """(D,) mean of the gallery, zero for cosine."""
    scale: float
    """Power of two, so that dividing by it rounds nothing; 1 for cosine."""

    @classmethod
    def around(cls, gallery: FloatArray, *, metric: Metric) -> Self:
        """Returns the frame that fits a gallery (N, D)."""
        if metric == "cosine":
            return cls(metric, np.zeros(gallery.shape[1]), 1.0)
        if metric != "euclidean":
            raise ValueError(
                f"evaluation: metric must be 'cosine' or 'euclidean', since other distances are "
                f"not searched. Got {metric!r}."
            )
        offset = gallery.mean(axis=0, dtype=np.float64)
        largest = max(float(np.abs(rows - offset).max()) for _, rows in _row_chunks(gallery))
        return cls(metric, offset, float(2.0 ** np.frexp(largest)[1]) if largest else 1.0)

    def place(self, embeddings: FloatArray) -> FloatArray:
        """Returns the vectors (N, D) of embeddings in this frame, as a new contiguous array."""
        placed = np.empty(embeddings.shape, dtype=np.float32)
        for chunk, rows in _row_chunks(embeddings):
            if self.metric == "cosine":
                placed[chunk] = _unit_rows(rows.astype(np.float64))
            else:
                placed[chunk] = (rows - self.offset) / self.scale
        return placed


def _row_chunks(embeddings: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
    for start in range(0, len(embeddings), ROWS_AT_ONCE):
        chunk = slice(start, start + ROWS_AT_ONCE)
        yield chunk, embeddings[chunk]


def _unit_rows(rows: DoubleArray) -> DoubleArray:
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return rows / np.where(lengths > 0, lengths, 1.0)[:, None]
