"""Finds the nearest gallery items of every query, exactly, in blocks of bounded size."""

# B = queries of a block, D = embedding dim, G = gallery items, K = neighbours, M = chosen queries
# N = vectors, Q = queries

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core.config.trial import SearchDevice
from dml_core.evaluation.arrays import FloatArray, Frame, IntArray, Metric
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


BLOCK = 4096
"""Vectors per side of a block: its products take 64 MiB, and BLAS is slower on smaller blocks."""
STRIPE = 1024
"""Rows of a block that are transposed at a time, to keep the copy small."""
MAX_RESULT_BYTES = 2**28
"""Most memory for the result; larger results are searched in blocks of queries."""


def fits_in_memory(num_vectors: int, count: int) -> bool:
    """Returns whether the whole result of a search fits in the memory allowed for it."""
    return num_vectors * count * (4 + 8) <= MAX_RESULT_BYTES


def search_among_all(vectors: FloatArray, *, count: int) -> tuple[FloatArray, IntArray]:
    """Returns (N, K) inner products and positions of the nearest vectors, nearest first.

    Computes each symmetric product once. A vector also finds itself. The result equals that of a
    flat faiss index with all vectors as queries, except for ties within float32 rounding.

    Args:
        vectors: (N, D), contiguous.
        count: K, at most N.
    """
    found = faiss.ResultHeap(len(vectors), count, keep_max=True)
    tensor, side = torch.from_numpy(vectors), min(BLOCK, len(vectors))
    # Reused buffers: the system would zero fresh memory first.
    space, copy = torch.empty(side * side), torch.empty(side * STRIPE)
    # Every vector meets the others in the order of positions, which decides ties.
    for row in range(0, len(vectors), BLOCK):
        for column in range(row, len(vectors), BLOCK):
            products = _multiply(tensor[row : row + BLOCK], tensor[column : column + BLOCK], space)
            _add(found, products, heap=row, position=column)
            if column > row:
                for start in range(0, len(products), STRIPE):
                    transposed = _transpose(products[start : start + STRIPE], copy)
                    _add(found, transposed, heap=column, position=row + start)
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


NeighborBlock = tuple[slice, IntArray]
"""The queries, and the (B, K) gallery indices of their neighbours, nearest first."""

SearchBlock = Callable[[slice, int], tuple[Any, IntArray]]
"""(queries, K) -> (B, K) distances and (B, K) positions in the shuffled gallery."""

MAX_BLOCK_ENTRIES = 2**22
"""Most entries (queries times neighbours) of a block: about 100 MB while one is searched."""


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
        def search(block: slice, count: int) -> tuple[Any, IntArray]:
            distances, positions = self._index.search(queries[block], count)
            return distances, positions

        return search

    def _search_at_once(self, count: int) -> SearchBlock:
        """Searches for all queries, and returns a function that looks up a block of the results."""
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
