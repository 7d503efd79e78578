"""Finds neighbours of embeddings cut to one bit a dimension, by Hamming distance."""

# D = embedding dim, G = gallery items, N = images, Q = queries

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from dml_core.evaluation.arrays import FloatArray, IntArray
from dml_core.evaluation.neighbors import NeighborBlock, search_in_blocks, shuffled_order


def pack_bits(embeddings: FloatArray) -> npt.NDArray[np.uint8]:
    """Returns (N, ceil(D / 8)) bytes: bit = value > 0, the last byte filled up with zeros.

    Zeros in the same place of every code add nothing to any Hamming distance.
    """
    return np.packbits(embeddings > 0, axis=1)


class BinarySearch:
    """Searches by Hamming distance, as a `NeighborSearch` does by others.

    Args:
        queries: (Q, D) embeddings, with or without unit length: the bits are the same.
        gallery: (G, D) embeddings; None searches among the queries, without the query itself.
        block_size: most queries at once; changes no neighbour.
    """

    def __init__(
        self, queries: FloatArray, gallery: FloatArray | None = None, *, block_size: int = 1024
    ) -> None:
        gallery_codes = pack_bits(queries if gallery is None else gallery)
        self._queries = gallery_codes if gallery is None else pack_bits(queries)
        self._order = shuffled_order(len(gallery_codes))
        self._index = faiss.IndexBinaryFlat(8 * gallery_codes.shape[1])
        self._index.add(gallery_codes[self._order])
        self._removes_self = gallery is None
        self._block_size = block_size

    def __call__(self, num_neighbors: int, rows: IntArray | None = None) -> Iterator[NeighborBlock]:
        """Yields the nearest neighbours of all queries, or of those in some rows."""
        codes = self._queries if rows is None else self._queries[rows]

        def search(block: slice, count: int) -> tuple[Any, IntArray]:
            distances, positions = self._index.search(codes[block], count)
            return distances, positions

        return search_in_blocks(
            search,
            num_queries=len(codes),
            order=self._order,
            removes_self=self._removes_self,
            num_neighbors=num_neighbors,
            block_size=self._block_size,
            rows=rows,
        )
