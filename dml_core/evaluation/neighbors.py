"""Finds the nearest gallery items of every query, exactly, in blocks of bounded size."""

# B = queries of a block, D = embedding dim, G = gallery items, K = neighbours, M = chosen queries
# N = vectors, Q = queries

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from dml_core.config.trial import SearchDevice
from dml_core.evaluation.among_all import fits_in_memory, search_among_all
from dml_core.evaluation.arrays import FloatArray, Frame, IntArray, Metric
from dml_core.evaluation.spreading import Spread
from dml_core.seeding import numpy_stream

MAX_NEIGHBORS = 2048
"""Most neighbours that faiss finds on a GPU."""


def check_search_device(device: SearchDevice) -> None:
    """Raises ValueError if a GPU is requested and faiss sees none."""
    if device == "gpu" and not faiss.get_num_gpus():
        raise ValueError(
            "evaluation.search_device=gpu needs a GPU and a faiss that was built for GPUs. "
            f"faiss {faiss.__version__} here sees none. Install faiss-gpu instead of "
            "faiss-cpu on the machines that evaluate, or use evaluation.search_device=cpu."
        )


class PlacedIndex:
    """An exact index on the configured device; searches beyond a GPU's limit run on the CPU."""

    def __init__(self, index: Any, device: SearchDevice) -> None:
        check_search_device(device)
        self._index = index
        self._on_gpus: Any = faiss.index_cpu_to_all_gpus(index) if device == "gpu" else None

    def search(self, queries: Any, count: int) -> tuple[Any, Any]:
        """Returns (B, K) distances and positions of the nearest vectors."""
        fits = self._on_gpus is not None and count <= MAX_NEIGHBORS
        found: tuple[Any, Any] = (self._on_gpus if fits else self._index).search(queries, count)
        return found


NeighborBlock = tuple[slice, IntArray]
"""The queries, and the (B, K) gallery indices of their neighbours, nearest first."""

SearchBlock = Callable[[slice, int], tuple[Any, IntArray]]
"""(queries, K) -> (B, K) distances and (B, K) positions in the shuffled gallery."""

MAX_BLOCK_ENTRIES = 2**22
"""Most entries (queries times neighbours) of a block: about 100 MB while one is searched."""
MAX_PART_ENTRIES = 2**24
"""Most entries of a part that is searched elsewhere: 200 MB of results."""


class NeighborSearch:
    """Exact search for the nearest gallery items of queries; the gallery is indexed once.

    Args:
        queries: (Q, D) finite embeddings.
        gallery: (G, D) finite embeddings; None searches among the queries and removes each query
            by its index.
        metric: cosine compares directions, euclidean distances.
        block_size: most queries at once; bounds the memory. Results are unchanged except for ties
            within float32 rounding.
        device: device of the search.
        compare_once_from: number of queries from which a cosine search among themselves computes
            each symmetric product once; 0 disables it. Results are unchanged except for ties
            within float32 rounding.
        spread: divides the queries; the result is the same, bit for bit.
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
        spread: Spread | None = None,
    ) -> None:
        if spread is None:
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
        self._spread = spread if spread and len(self._queries) > spread.part_size else None
        is_large = 0 < compare_once_from <= len(searched)
        self._compares_once = (
            is_large and gallery is None and metric == "cosine" and device == "cpu"
        )

    @cached_property
    def _index(self) -> PlacedIndex:
        """Built at the first search: it copies all vectors and may not be needed."""
        return PlacedIndex(
            build_index(self._vectors[self._order], metric=self._metric), self._device
        )

    def __call__(self, num_neighbors: int, rows: IntArray | None = None) -> Iterator[NeighborBlock]:
        """Yields the nearest neighbours block by block, in the order of the queries.

        Args:
            num_neighbors: K; fewer if the gallery has fewer.
            rows: (M,) indices of the queries; None takes all.
        """
        queries = self._queries if rows is None else self._queries[rows]
        # Each query is among its own neighbours.
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
        if self._spread is not None:
            return self._search_in_parts(queries, self._spread)

        def search(block: slice, count: int) -> tuple[Any, IntArray]:
            distances, positions = self._index.search(queries[block], count)
            return distances, positions

        return search

    def _search_at_once(self, count: int) -> SearchBlock:
        """Searches for all queries, and returns a function that looks up a block of the results."""
        vectors = self._vectors[self._order]
        products, positions = search_among_all(vectors, count=count, spread=self._spread)
        place = np.empty_like(self._order)
        place[self._order] = np.arange(len(place))

        def search(block: slice, _: int) -> tuple[Any, IntArray]:
            return products[place[block]], positions[place[block]]

        return search

    def _search_in_parts(self, queries: FloatArray, spread: Spread) -> SearchBlock:
        """Returns a function that looks up the blocks in order; the first starts the search."""
        found: Iterator[tuple[Any, IntArray]] | None = None

        def search(_: slice, count: int) -> tuple[Any, IntArray]:
            nonlocal found
            if found is None:
                found = self._run_parts(queries, count, spread)
            return next(found)

        return search

    def _run_parts(
        self, queries: FloatArray, count: int, spread: Spread
    ) -> Iterator[tuple[Any, IntArray]]:
        """Yields the distances and positions of each block of queries, in order."""
        row_length = count - int(self._removes_self)
        blocks = list(
            query_blocks(len(queries), block_size=self._block_size, row_length=row_length)
        )
        length = blocks[0].stop
        most = max(1, min(spread.part_size, MAX_PART_ENTRIES // count) // length)
        parts = [
            _QueryPart(queries[group[0].start : group[-1].stop], _lengths(group), count)
            for group in (blocks[first : first + most] for first in range(0, len(blocks), most))
        ]
        gallery = _Gallery(self._vectors[self._order], self._metric, self._device)
        return chain.from_iterable(spread.run(_search_gallery, gallery, parts))


@dataclass(frozen=True)
class _Gallery:
    """What the parts of a search have in common."""

    vectors: FloatArray
    """(G, D), shuffled."""
    metric: Metric
    device: SearchDevice


@dataclass(frozen=True)
class _QueryPart:
    """Some blocks of queries; a block is searched in one call, as its rounding depends on it."""

    queries: FloatArray
    lengths: list[int]
    count: int


def _lengths(blocks: list[slice]) -> list[int]:
    return [block.stop - block.start for block in blocks]


def _search_gallery(gallery: _Gallery, part: _QueryPart) -> list[tuple[Any, IntArray]]:
    index = PlacedIndex(build_index(gallery.vectors, metric=gallery.metric), gallery.device)
    edges = np.cumsum([0, *part.lengths])
    return [index.search(part.queries[start:end], part.count) for start, end in pairwise(edges)]


def iterate_neighbors(
    queries: FloatArray,
    gallery: FloatArray | None = None,
    *,
    num_neighbors: int,
    metric: Metric,
    block_size: int = 1024,
) -> Iterator[NeighborBlock]:
    """Yields the nearest neighbours of every query by a `NeighborSearch`."""
    search = NeighborSearch(queries, gallery, metric=metric, block_size=block_size)
    return search(num_neighbors)


def build_index(vectors: FloatArray, *, metric: Metric) -> Any:
    """Returns an exact faiss index of (G, D) vectors that are in the frame of the metric."""
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
    """Yields neighbours from an exact search over a gallery that was shuffled by `order`.

    Args:
        search: looks up a block of queries in the shuffled gallery.
        num_queries: Q.
        order: (G,) gallery item at each position of the shuffled gallery.
        removes_self: whether each query is a gallery item and must not find itself.
        num_neighbors: K, at most the size of the gallery.
        block_size: most queries at once; fewer if K is large.
        rows: (Q,) gallery item of each query; None if query i is item i.
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
    """Returns the fixed (G,) permutation that decides ties among gallery items."""
    return numpy_stream(0, "evaluation.tie_order").permutation(num_gallery)


def query_blocks(num_queries: int, *, block_size: int, row_length: int) -> Iterator[slice]:
    """Yields slices over the queries, shorter if each query needs more memory.

    All have nearly the same length, since faiss is many times slower on a short remainder.
    """
    most = max(1, min(block_size, MAX_BLOCK_ENTRIES // max(1, row_length)))
    num_blocks = -(-num_queries // most)
    edges = [num_queries * number // num_blocks for number in range(num_blocks + 1)]
    for start, stop in pairwise(edges):
        yield slice(start, stop)


def order_ties(distances: Any, positions: IntArray) -> IntArray:
    """Returns (B, K) positions with ties in ascending order.

    Among items tied at the last rank faiss keeps the lowest positions, but by inner product it
    lists ties in descending order, so the nearest item would depend on K.
    """
    assert positions.min() >= 0, "faiss found too few neighbours among finite vectors"
    is_tied = distances[:, 1:] == distances[:, :-1]
    is_falling = positions[:, 1:] < positions[:, :-1]
    rows = np.flatnonzero((is_tied & is_falling).any(axis=1))
    if len(rows) == 0:
        return positions
    ordered = positions.copy()
    # Distances are sorted, so the number of the tie group represents the distance.
    groups = np.zeros((len(rows), positions.shape[1]), dtype=np.int64)
    np.cumsum(~is_tied[rows], axis=1, out=groups[:, 1:])
    ranks = np.lexsort((positions[rows], groups), axis=1)
    ordered[rows] = np.take_along_axis(positions[rows], ranks, axis=1)
    return ordered


def drop_self(neighbors: IntArray, own: IntArray) -> IntArray:
    """Returns (B, K) neighbours without the query itself, from (B, K + 1) neighbours.

    If duplicates displaced the query from its own list, the last neighbour is dropped instead.

    Args:
        neighbors: (B, K + 1) gallery indices.
        own: (B,) gallery index of each query.
    """
    keep = neighbors != own[:, None]
    keep[keep.all(axis=1), -1] = False
    others: IntArray = neighbors[keep].reshape(len(neighbors), -1)
    return others


def pack_bits(embeddings: FloatArray) -> npt.NDArray[np.uint8]:
    """Returns (N, ceil(D / 8)) bytes with bit = value > 0; the last byte is padded with zeros.

    The padding is equal in all codes and adds nothing to a Hamming distance.
    """
    return np.packbits(embeddings > 0, axis=1)


class BinarySearch:
    """Exact search by Hamming distance of binarised embeddings.

    Args:
        queries: (Q, D) embeddings of any length; the bits are the same.
        gallery: (G, D) embeddings; None searches among the queries, without the query itself.
        block_size: most queries at once; does not change the result.
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
        """Yields the nearest neighbours of all queries, or of the given rows."""
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
