"""Finds the nearest gallery items of every query, exactly, in blocks of bounded size.

Ties: the gallery is shuffled by a fixed seed before it is indexed, and of items at the same
distance the one that comes first in the shuffled order is the nearer one. The choice is the same
in every run and independent of K, and no class gains by standing first in the file.
"""

# B = queries of a block, D = embedding dim, G = gallery items, K = neighbours, Q = queries

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import faiss
import numpy as np

from dml_core.config.evaluation import SearchDevice
from dml_core.evaluation.arrays import FloatArray, IntArray
from dml_core.evaluation.faiss_device import PlacedIndex, check_search_device
from dml_core.evaluation.pairs_once import fits_in_memory, search_among_all
from dml_core.evaluation.vectors import Frame, Metric
from dml_core.seeding import numpy_stream

NeighborBlock = tuple[slice, IntArray]
"""Which queries, and the (B, K) gallery indices of their neighbours, nearest first."""

SearchBlock = Callable[[slice, int], tuple[Any, IntArray]]
"""(queries, K) -> (B, K) distances and (B, K) positions in the shuffled gallery."""

MAX_BLOCK_ENTRIES = 2**22
"""Most entries (queries times neighbours) of a block: about 100 MB while one is searched."""


class NeighborSearch:
    """An exact search for the nearest gallery items of queries; the gallery is indexed once.

    Args:
        queries: (Q, D) finite embeddings.
        gallery: (G, D) finite embeddings; None searches among the queries, each query itself
            removed by its index.
        metric: cosine compares directions, euclidean distances.
        block_size: most queries at once. Bounds the memory and changes no neighbour, save where
            two distances differ by float32's rounding only.
        device: where it is searched.
        compare_once_from: queries from which on a search by cosine among themselves compares each
            pair once; 0 never does. Changes no neighbour, save where two distances differ by
            float32's rounding only.
    """

    def __init__(
        self,
        queries: FloatArray,
        gallery: FloatArray | None = None,
        *,
        metric: Metric,
        block_size: int = 1024,
        device: SearchDevice = "cpu",
        compare_once_from: int = 0,
    ) -> None:
        check_search_device(device)
        searched = queries if gallery is None else gallery
        frame = Frame.around(searched, metric=metric)
        self._vectors = frame.place(searched)
        self._order = shuffled_order(len(searched))
        self._queries = self._vectors if gallery is None else frame.place(queries)
        self._metric: Metric = metric
        self._device: SearchDevice = device
        self._removes_self = gallery is None
        self._block_size = block_size
        is_large = 0 < compare_once_from <= len(searched)
        self._compares_once = (
            is_large and gallery is None and metric == "cosine" and device == "cpu"
        )

    @cached_property
    def _index(self) -> PlacedIndex:
        """Built when it is first searched: a copy of all vectors that may not be needed."""
        return PlacedIndex(
            build_index(self._vectors[self._order], metric=self._metric), self._device
        )

    def __call__(self, num_neighbors: int, rows: IntArray | None = None) -> Iterator[NeighborBlock]:
        """Yields the nearest neighbours, block after block in the order of queries.

        Args:
            num_neighbors: K; fewer are given where the gallery has fewer.
            rows: (M,) which queries; None takes all.
        """
        queries = self._queries if rows is None else self._queries[rows]
        # Each query itself comes with its neighbours.
        count = min(num_neighbors + 1, len(queries))
        at_once = rows is None and self._compares_once and fits_in_memory(len(queries), count)
        return search_in_blocks(
            self._search_at_once(count) if at_once else self._search_index(queries),
            num_queries=len(queries),
            order=self._order,
            removes_self=self._removes_self,
            num_neighbors=num_neighbors,
            block_size=self._block_size,
            rows=rows,
        )

    def _search_index(self, queries: FloatArray) -> SearchBlock:
        def search(block: slice, count: int) -> tuple[Any, IntArray]:
            distances, positions = self._index.search(queries[block], count)
            return distances, positions

        return search

    def _search_at_once(self, count: int) -> SearchBlock:
        """Searches for all queries, and returns what looks up the results of a block of them."""
        products, positions = search_among_all(self._vectors[self._order], count=count)
        place = np.empty_like(self._order)
        place[self._order] = np.arange(len(place))

        def search(block: slice, _: int) -> tuple[Any, IntArray]:
            return products[place[block]], positions[place[block]]

        return search


def iterate_neighbors(
    queries: FloatArray,
    gallery: FloatArray | None = None,
    *,
    num_neighbors: int,
    metric: Metric,
    block_size: int = 1024,
) -> Iterator[NeighborBlock]:
    """Yields the nearest neighbours of every query, as a NeighborSearch of the arguments does."""
    search = NeighborSearch(queries, gallery, metric=metric, block_size=block_size)
    return search(num_neighbors)


def build_index(vectors: FloatArray, *, metric: Metric) -> Any:
    """Returns a faiss index that searches (G, D) vectors exactly, placed in the metric's frame."""
    index_class = faiss.IndexFlatIP if metric == "cosine" else faiss.IndexFlatL2
    index = index_class(vectors.shape[1])
    index.add(vectors)
    return index


def search_in_blocks(
    search: SearchBlock,
    *,
    num_queries: int,
    order: IntArray,
    removes_self: bool,
    num_neighbors: int,
    block_size: int,
    rows: IntArray | None = None,
) -> Iterator[NeighborBlock]:
    """Yields neighbours from any exact search over a gallery that was shuffled by `order`.

    Args:
        search: looks up a block of queries in the shuffled gallery.
        num_queries: Q.
        order: (G,) which gallery item stands at each position of the shuffled gallery.
        removes_self: whether each query is a gallery item and must not find itself.
        num_neighbors: K, cut to what the gallery has.
        block_size: most queries at once; fewer are taken where K is large.
        rows: (Q,) which gallery item each query is; None where query i is item i.
    """
    count = min(num_neighbors, len(order) - int(removes_self))
    for block in query_blocks(num_queries, block_size=block_size, row_length=count):
        if count == 0:
            yield block, np.empty((block.stop - block.start, 0), dtype=np.int64)
            continue
        distances, positions = search(block, count + int(removes_self))
        neighbors = order[order_ties(distances, positions)]
        if removes_self:
            own = np.arange(block.start, block.stop) if rows is None else rows[block]
            neighbors = drop_self(neighbors, own)
        yield block, neighbors


def shuffled_order(num_gallery: int) -> IntArray:
    """Returns (G,) the fixed shuffle that settles ties among gallery items."""
    return numpy_stream(0, "evaluation.tie_order").permutation(num_gallery)


def query_blocks(num_queries: int, *, block_size: int, row_length: int) -> Iterator[slice]:
    """Yields slices over the queries, shorter where each query needs a long row of memory.

    All have nearly the same length: faiss is many times slower on a short remainder.
    """
    most = max(1, min(block_size, MAX_BLOCK_ENTRIES // max(1, row_length)))
    num_blocks = -(-num_queries // most)
    edges = [num_queries * number // num_blocks for number in range(num_blocks + 1)]
    for start, stop in pairwise(edges):
        yield slice(start, stop)


def order_ties(distances: Any, positions: IntArray) -> IntArray:
    """Returns (B, K) positions with those at equal distance in rising order.

    Of items tied at the last rank faiss keeps the lowest positions, yet by inner product it
    lists equal ones from the highest down, so the nearest one would depend on K.
    """
    assert positions.min() >= 0, "faiss found too few neighbours among finite vectors"
    is_tied = distances[:, 1:] == distances[:, :-1]
    is_falling = positions[:, 1:] < positions[:, :-1]
    rows = np.flatnonzero((is_tied & is_falling).any(axis=1))
    if len(rows) == 0:
        return positions
    ordered = positions.copy()
    # Distances come sorted, so the number of the tie group stands for the distance.
    groups = np.zeros((len(rows), positions.shape[1]), dtype=np.int64)
    np.cumsum(~is_tied[rows], axis=1, out=groups[:, 1:])
    ranks = np.lexsort((positions[rows], groups), axis=1)
    ordered[rows] = np.take_along_axis(positions[rows], ranks, axis=1)
    return ordered


def drop_self(neighbors: IntArray, own: IntArray) -> IntArray:
    """Returns (B, K) neighbours without the query itself, from (B, K + 1) with it.

    A query that duplicates crowded out of its own list loses the last neighbour instead.

    Args:
        neighbors: (B, K + 1) gallery indices.
        own: (B,) each query's own gallery index.
    """
    keep = neighbors != own[:, None]
    keep[keep.all(axis=1), -1] = False
    others: IntArray = neighbors[keep].reshape(len(neighbors), -1)
    return others
