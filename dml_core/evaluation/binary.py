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


def iterate_binary_neighbors(
    queries: FloatArray,
    gallery: FloatArray | None = None,
    *,
    num_neighbors: int,
    block_size: int = 1024,
) -> Iterator[NeighborBlock]:
    """Yields the nearest neighbours by Hamming distance, as `iterate_neighbors` does.

    Args:
        queries: (Q, D) embeddings, with or without unit length: the bits are the same.
        gallery: (G, D) embeddings; None searches among the queries, without the query itself.
        num_neighbors: K; fewer are given where the gallery has fewer.
        block_size: most queries at once; changes no neighbour.
    """
    searched = queries if gallery is None else gallery
    order = shuffled_order(len(searched))
    gallery_codes = pack_bits(searched)
    query_codes = gallery_codes if gallery is None else pack_bits(queries)
    index = faiss.IndexBinaryFlat(8 * gallery_codes.shape[1])
    index.add(gallery_codes[order])

    def search(block: slice, count: int) -> tuple[Any, IntArray]:
        distances, positions = index.search(query_codes[block], count)
        return distances, positions

    yield from search_in_blocks(
        search,
        num_queries=len(queries),
        order=order,
        removes_self=gallery is None,
        num_neighbors=num_neighbors,
        block_size=block_size,
    )
