"""Arrays of an evaluation: their checks, query and gallery sets, and scaling for distances."""

# D = embedding dim, L = label columns, N = images

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def check_embeddings(embeddings: npt.NDArray[np.floating]) -> FloatArray:
    """Returns (N, D) embeddings as float32; raises ValueError if they are empty or not finite.

    Values beyond the range of float32 count as not finite.
    """
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(
            "evaluation: embeddings must be a table of shape (images, dimensions) with at least "
            f"one of each, one row per image. Got shape {embeddings.shape}. Embed the images first."
        )
    with np.errstate(over="ignore"):
        narrow = embeddings.astype(np.float32, copy=False)
    num_bad = int(np.count_nonzero(~np.isfinite(narrow).all(axis=1)))
    if num_bad:
        raise ValueError(
            "evaluation: embeddings must be finite, since a distance to NaN or infinity has no "
            f"rank. Got {num_bad} of {len(narrow)} rows that are not. "
            "Lower optimizer.learning_rate, or take an earlier checkpoint."
        )
    return narrow


def check_labels(labels: npt.NDArray[np.integer], *, num_rows: int) -> IntArray:
    """Returns (N,) integer labels as int64; raises ValueError for another length or type."""
    if labels.shape != (num_rows,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"evaluation: labels must be one integer per image, of shape ({num_rows},), since "
            f"floats merge ids above 2^24. Got {labels.dtype} of shape {labels.shape}."
        )
    return labels.astype(np.int64, copy=False)


def check_continuous(continuous: npt.NDArray[np.floating], *, num_rows: int) -> DoubleArray:
    """Returns (N, L) continuous labels as float64; raises ValueError if one is not finite."""
    if continuous.ndim != 2 or len(continuous) != num_rows or continuous.shape[1] == 0:
        raise ValueError(
            f"evaluation: continuous labels must have shape ({num_rows}, columns), one row per "
            f"image and at least one column. Got shape {continuous.shape}."
        )
    num_bad = int(np.count_nonzero(~np.isfinite(continuous).all(axis=1)))
    if num_bad:
        raise ValueError(
            "evaluation: continuous labels must be finite, since label distances are averaged. "
            f"Got {num_bad} of {num_rows} rows with NaN or infinity. Correct the manifest."
        )
    return continuous.astype(np.float64, copy=False)


def check_ranks(ranks: tuple[int, ...], *, name: str) -> None:
    """Raises ValueError unless every K of a metric at K is at least 1."""
    wrong = [rank for rank in ranks if rank < 1]
    if wrong:
        raise ValueError(
            f"evaluation.{name} must hold numbers from 1, since the nearest item has rank 1. "
            f"Got {wrong}. Remove them."
        )


Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class QueryAndGallery:
    """Which rows are queries and which are the gallery."""

    is_query: BoolArray | None
    """(N,); None if every image is searched among all others."""

    def split(
        self, values: npt.NDArray[Scalar]
    ) -> tuple[npt.NDArray[Scalar], npt.NDArray[Scalar] | None]:
        """Returns the rows of the queries and of the gallery from (N, ...) values.

        The gallery is None if the queries are the gallery.
        """
        if self.is_query is None:
            return values, None
        return values[self.is_query], values[~self.is_query]


def split_by_role(roles: npt.NDArray[np.str_] | None, *, num_rows: int) -> QueryAndGallery:
    """Returns the query and gallery sets of (N,) roles.

    Without the roles `query` and `gallery` every image is searched among all others.

    Raises:
        ValueError: when only one of the two is present, or they are mixed with other roles.
    """
    if roles is None:
        return QueryAndGallery(None)
    if roles.shape != (num_rows,):
        raise ValueError(
            f"evaluation: roles must name one role for each of the {num_rows} images. "
            f"Got shape {roles.shape}."
        )
    names = set(np.unique(roles).tolist())
    if not names & {"query", "gallery"}:
        return QueryAndGallery(None)
    if names != {"query", "gallery"}:
        raise ValueError(
            "evaluation: roles must be 'query' and 'gallery', both, if one of them is used, "
            f"since queries are searched in the gallery only. Got {sorted(names)}. "
            "Leave out the other images, or give no roles."
        )
    return QueryAndGallery(roles == "query")


Metric = Literal["cosine", "euclidean"]

ROWS_AT_ONCE = 4096
"""Rows converted to float64 at a time."""


@dataclass(frozen=True)
class Frame:
    """A transformation of the vectors that preserves the order of distances.

    Cosine: every vector is scaled to unit length; a zero vector stays zero and is equally far from
    all. Euclidean: the mean of the gallery is subtracted and the largest entry becomes at most 1.
    In large searches faiss computes |x|² + |y|² - 2xy, which loses all digits when vectors share a
    large offset, and overflows for large vectors.
    """

    metric: Metric
    offset: DoubleArray
    """(D,) mean of the gallery; zero for cosine."""
    scale: float
    """A power of two, so that division is exact; 1 for cosine."""

    @classmethod
    def around(cls, gallery: FloatArray, *, metric: Metric) -> Self:
        """Returns the frame of an (N, D) gallery."""
        if metric == "cosine":
            return cls(metric, np.zeros(gallery.shape[1]), 1.0)
        if metric != "euclidean":
            raise ValueError(
                f"evaluation: metric must be 'cosine' or 'euclidean', since other distances are "
                f"not supported. Got {metric!r}."
            )
        offset = gallery.mean(axis=0, dtype=np.float64)
        largest = max(float(np.abs(rows - offset).max()) for _, rows in _row_chunks(gallery))
        return cls(metric, offset, float(2.0 ** np.frexp(largest)[1]) if largest else 1.0)

    def place(self, embeddings: FloatArray) -> FloatArray:
        """Returns (N, D) embeddings transformed to this frame, as a new contiguous array."""
        placed = np.empty(embeddings.shape, dtype=np.float32)
        for chunk, rows in _row_chunks(embeddings):
            placed[chunk] = self.place_rows(rows)
        return placed

    def place_rows(self, rows: FloatArray) -> DoubleArray:
        """Returns some rows transformed to this frame, in float64."""
        if self.metric == "cosine":
            return _unit_rows(rows.astype(np.float64))
        placed: DoubleArray = (rows - self.offset) / self.scale
        return placed


def _row_chunks(embeddings: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
    for start in range(0, len(embeddings), ROWS_AT_ONCE):
        chunk = slice(start, start + ROWS_AT_ONCE)
        yield chunk, embeddings[chunk]


def _unit_rows(rows: DoubleArray) -> DoubleArray:
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return rows / np.where(lengths > 0, lengths, 1.0)[:, None]
