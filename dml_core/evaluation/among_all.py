"""Searches vectors among themselves by inner product, with each symmetric product computed once."""

# D = embedding dim, K = neighbours, N = vectors

from functools import partial
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from dml_core.evaluation.arrays import FloatArray, IntArray
from dml_core.evaluation.spreading import Spread, split_rows

BLOCK = 4096
"""Vectors per side of a block: its products take 64 MiB, and BLAS is slower on smaller blocks."""
STRIPE = 1024
"""Rows of a block that are transposed at a time, to keep the copy small."""
MAX_RESULT_BYTES = 2**28
"""Most memory for the result; larger results are searched in blocks of queries."""


def fits_in_memory(num_vectors: int, count: int) -> bool:
    """Returns whether the whole result of a search fits in the memory allowed for it."""
    return num_vectors * count * (4 + 8) <= MAX_RESULT_BYTES


def search_among_all(
    vectors: FloatArray, *, count: int, spread: Spread | None = None
) -> tuple[FloatArray, IntArray]:
    """Returns (N, K) inner products and positions of the nearest vectors, nearest first.

    Computes each symmetric product once. A vector also finds itself. The result equals that of a
    flat faiss index with all vectors as queries, except for ties within float32 rounding.

    Args:
        vectors: (N, D), contiguous.
        count: K, at most N.
        spread: divides the vectors; the result is the same, bit for bit.
    """
    if spread is None:
        return search_rows_among_all(vectors, range(len(vectors)), count=count)
    # Products of two parts are computed in both, so parts are as large as the lanes allow.
    part_size = max(spread.part_size, -(-len(vectors) // spread.lanes))
    rows = split_rows(len(vectors), part_size=part_size, multiple=BLOCK)
    parts = list(spread.run(partial(search_rows_among_all, count=count), vectors, rows))
    return np.concatenate([each for each, _ in parts]), np.concatenate([at for _, at in parts])


def search_rows_among_all(
    vectors: FloatArray, rows: range, *, count: int
) -> tuple[FloatArray, IntArray]:
    """Returns the rows of `search_among_all` for a range of vectors, bit for bit.

    For any range the same blocks are multiplied, and added in the same order.

    Args:
        vectors: (N, D), contiguous.
        rows: begins at a multiple of BLOCK, and ends at one or at N.
        count: K, at most N.
    """
    found = faiss.ResultHeap(len(rows), count, keep_max=True)
    tensor, side = torch.from_numpy(vectors), min(BLOCK, len(vectors))
    # Reused buffers: the system would zero fresh memory first.
    space, copy = torch.empty(side * side), torch.empty(side * STRIPE)
    # Every vector meets the others in the order of positions, which decides ties.
    for row in range(0, rows.stop, BLOCK):
        is_wanted = row >= rows.start
        end = len(vectors) if is_wanted else rows.stop
        for column in range(max(row, rows.start), end, BLOCK):
            products = _multiply(tensor[row : row + BLOCK], tensor[column : column + BLOCK], space)
            if is_wanted:
                _add(found, products, heap=row - rows.start, position=column)
            if row < column < rows.stop:
                for start in range(0, len(products), STRIPE):
                    transposed = _transpose(products[start : start + STRIPE], copy)
                    _add(found, transposed, heap=column - rows.start, position=row + start)
    found.finalize()
    return found.D, found.I


def _multiply(rows: Tensor, columns: Tensor, space: Tensor) -> Tensor:
    products = space[: len(rows) * len(columns)].view(len(rows), len(columns))
    return torch.mm(rows, columns.t(), out=products)


def _transpose(products: Tensor, space: Tensor) -> Tensor:
    """Returns the transpose; torch copies contiguous rows in tiles."""
    num_rows, num_columns = products.shape
    return space[: products.numel()].view(num_columns, num_rows).copy_(products.t())


def _add(found: Any, products: Tensor, *, heap: int, position: int) -> None:
    """Adds a block of products to the results of its rows.

    Args:
        found: the results so far.
        products: inner products of vectors with others, contiguous.
        heap: index of the first row's vector.
        position: index of the first column's vector.
    """
    values: np.ndarray = products.numpy()
    num_rows, num_columns = values.shape
    found.heaps.addn(num_columns, faiss.swig_ptr(values), position, heap, num_rows)
