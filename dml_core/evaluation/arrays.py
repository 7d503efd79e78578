"""The array types of the evaluation, with the checks that every entry point shares."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def check_embeddings(embeddings: npt.NDArray[np.floating]) -> FloatArray:
    """Returns (N, D) embeddings as float32; raises ValueError where they are empty or not finite.

    Wider floats that float32 cannot hold count as not finite.
    """
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(
            "evaluation: embeddings must be a table of shape (images, dimensions) with at least "
            f"one of each, one row an image. Got shape {embeddings.shape}. Embed the images first."
        )
    with np.errstate(over="ignore"):
        narrow = embeddings.astype(np.float32, copy=False)
    num_bad = int(np.count_nonzero(~np.isfinite(narrow).all(axis=1)))
    if num_bad:
        raise ValueError(
            "evaluation: embeddings must be finite, since a distance to NaN or infinity has no "
            f"rank. Got {num_bad} of {len(narrow)} rows with such values. "
            "Lower optimizer.learning_rate, or take an earlier checkpoint."
        )
    return narrow


def check_labels(labels: npt.NDArray[np.integer], *, num_rows: int) -> IntArray:
    """Returns (N,) integer labels as int64; raises ValueError for another length or type."""
    if labels.shape != (num_rows,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"evaluation: labels must be one whole number an image, of shape ({num_rows},), since "
            f"floats merge ids above 2^24. Got {labels.dtype} of shape {labels.shape}."
        )
    return labels.astype(np.int64, copy=False)


def check_continuous(continuous: npt.NDArray[np.floating], *, num_rows: int) -> DoubleArray:
    """Returns (N, L) continuous labels as float64; raises ValueError where one is not finite."""
    if continuous.ndim != 2 or len(continuous) != num_rows or continuous.shape[1] == 0:
        raise ValueError(
            f"evaluation: continuous labels must have shape ({num_rows}, columns), one row an "
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
