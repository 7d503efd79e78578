"""Finds the nearest of all vectors among themselves, comparing each pair once for both of it."""

# B = vectors of a block, K = neighbours, N = vectors

from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from dml_core.evaluation.arrays import FloatArray, IntArray

BLOCK = 4096
"""Vectors on each side of a block: its products take 64 MiB, and matrix libraries are slower on
smaller ones."""
STRIPE = 1024
"""Rows of a block that are turned over at a time, to keep the copy small."""
MAX_RESULT_BYTES = 2**28
"""Most memory for what is found. More than that is better searched in blocks of queries."""


def fits_in_memory(num_vectors: int, count: int) -> bool:
    """Returns whether the result of a search is small enough to be held as a whole."""
    return num_vectors * count * (4 + 8) <= MAX_RESULT_BYTES


def search_among_all(vectors: FloatArray, *, count: int) -> tuple[FloatArray, IntArray]:
    """Returns (N, K) inner products and positions of the nearest vectors, the nearest first.

    A vector finds itself, too. The result is that of a flat index of faiss with all vectors as
    queries, save where two products differ by float32's rounding only.

    Args:
        vectors: (N, D), contiguous.
        count: K, at most N.
    """
    found = faiss.ResultHeap(len(vectors), count, keep_max=True)
    tensor, side = torch.from_numpy(vectors), min(BLOCK, len(vectors))
    # Used again and again: the system would clear fresh memory first.
    space, copy = torch.empty(side * side), torch.empty(side * STRIPE)
    # Every vector meets the others in the order of their positions, which settles ties.
    for row in range(0, len(vectors), BLOCK):
        for column in range(row, len(vectors), BLOCK):
            products = _multiply(tensor[row : row + BLOCK], tensor[column : column + BLOCK], space)
            _add(found, products, heap=row, position=column)
            if column > row:
                for start in range(0, len(products), STRIPE):
                    turned = _turn_over(products[start : start + STRIPE], copy)
                    _add(found, turned, heap=column, position=row + start)
    found.finalize()
    return found.D, found.I


def _multiply(rows: Tensor, columns: Tensor, space: Tensor) -> Tensor:
    products = space[: len(rows) * len(columns)].view(len(rows), len(columns))
    return torch.mm(rows, columns.t(), out=products)


def _turn_over(products: Tensor, space: Tensor) -> Tensor:
    """Returns the transpose; torch makes it in tiles where the rows are whole."""
    num_rows, num_columns = products.shape
    return space[: products.numel()].view(num_columns, num_rows).copy_(products.t())


def _add(found: Any, products: Tensor, *, heap: int, position: int) -> None:
    """Takes a block into the results of its rows.

    Args:
        found: the results so far.
        products: of some vectors with others, contiguous.
        heap: the vector of the first row.
        position: the vector of the first column.
    """
    values: np.ndarray = products.numpy()
    num_rows, num_columns = values.shape
    found.heaps.addn(num_columns, faiss.swig_ptr(values), position, heap, num_rows)
