"""Measures what a smaller or faster index costs: R@1, bytes of an image, queries a second."""

# D = embedding dim, G = gallery items, N = images, Q = queries

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from dml_core.data.prepared import ImageSet, open_test
from dml_core.evaluation.arrays import FloatArray, Frame, IntArray, Metric, split_by_role
from dml_core.evaluation.neighbors import build_index, pack_bits, shuffled_order
from dml_core.evaluation.retrieval import count_relevant
from dml_core.measures.model_scores import embed_with_checkpoint
from dml_core.measures.results import Measured, WinnerFolder
from dml_core.studies.metrics import SEARCH_INDEXES
from dml_core.training.determinism import limited_threads

ByteArray = npt.NDArray[np.uint8]

_PART_DIM = 4
"""Dimensions of a part that product quantisation replaces with one byte."""
_PQ_ITERATIONS = 10
_HNSW_LINKS = 32
_HNSW_DEPTH = 64
_IVF_SHARE = 8
"""One of this many lists is searched."""


@dataclass(frozen=True)
class SearchBudget:
    """Length of the measurement."""

    rounds: int = 5
    """Rounds over all indexes, so that a slow moment of the machine affects all of them."""
    queries: int = 200
    """Timed queries of an index per round."""


@dataclass(frozen=True)
class SearchTask:
    """Queries with what they should find."""

    queries: FloatArray
    """(Q, D) in the frame of the metric."""
    gallery: FloatArray
    """(G, D) in the order of the index: shuffled, so that ties favour no class."""
    query_codes: ByteArray
    """Bits of the queries; a frame may move the signs, so they are those of the embeddings."""
    gallery_codes: ByteArray
    own: IntArray
    """(Q,) place of each query in the gallery; -1 where it is not part of it."""
    query_labels: IntArray
    gallery_labels: IntArray
    metric: Metric


def make_task(embeddings: FloatArray, images: ImageSet, *, metric: Metric) -> SearchTask:
    """Returns the search of an evaluation: the queries that have something to find."""
    sets = split_by_role(images.roles, num_rows=len(images))
    queries, gallery = sets.split(embeddings)
    query_labels, gallery_labels = sets.split(images.labels)
    counts = count_relevant(query_labels, gallery_labels) > 0
    searched = queries if gallery is None else gallery
    searched_labels = query_labels if gallery_labels is None else gallery_labels
    order = shuffled_order(len(searched))
    places = np.full(len(queries), -1, dtype=np.int64)
    if gallery is None:
        places[order] = np.arange(len(order))
    frame = Frame.around(searched, metric=metric)
    return SearchTask(
        queries=frame.place(queries)[counts],
        gallery=frame.place(searched)[order],
        query_codes=pack_bits(queries[counts]),
        gallery_codes=pack_bits(searched[order]),
        own=places[counts],
        query_labels=query_labels[counts],
        gallery_labels=searched_labels[order],
        metric=metric,
    )


@dataclass(frozen=True)
class SearchIndex:
    """An index of a gallery."""

    index: Any
    is_binary: bool

    def queries_of(self, task: SearchTask) -> Any:
        """Returns the queries as the index takes them."""
        return task.query_codes if self.is_binary else task.queries

    def search(self, queries: Any, count: int) -> tuple[Any, IntArray]:
        """Returns (Q, K) distances and places in the gallery; -1 where nothing was found."""
        distances, places = self.index.search(queries, count)
        return distances, places

    def bytes_per_image(self, num_images: int) -> float:
        """Returns the bytes that each image adds; codebooks, which do not grow, do not count."""
        # The stubs of faiss lack what it has for binary indexes.
        library: Any = faiss
        clone = library.clone_binary_index if self.is_binary else library.clone_index
        size = library.serialize_index_binary if self.is_binary else library.serialize_index
        empty = clone(self.index)
        empty.reset()
        return float(len(size(self.index)) - len(size(empty))) / num_images


def build_search_index(kind: str, task: SearchTask) -> SearchIndex:
    """Returns the index of a task's gallery, of one of SEARCH_INDEXES.

    float32 is exact. int8 has a byte a dimension, pq (product quantisation) a byte for four
    dimensions, bits one bit a dimension. hnsw and ivf keep the floats and search a part of them:
    64 candidates in a graph of 32 links, or an eighth of the square root of G lists.
    """
    gallery, dim = task.gallery, task.gallery.shape[1]
    if kind == "bits":
        index = faiss.IndexBinaryFlat(8 * task.gallery_codes.shape[1])
        index.add(task.gallery_codes)
        return SearchIndex(index, is_binary=True)
    if kind == "float32":
        return SearchIndex(build_index(gallery, metric=task.metric), is_binary=False)
    is_cosine = task.metric == "cosine"
    distance = faiss.METRIC_INNER_PRODUCT if is_cosine else faiss.METRIC_L2
    index = _MAKERS[kind](dim, len(gallery), distance)
    if not index.is_trained:
        index.train(gallery)
    index.add(gallery)
    return SearchIndex(index, is_binary=False)


def _make_int8(dim: int, _: int, distance: int) -> Any:
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, distance)


def _make_pq(dim: int, num_images: int, distance: int) -> Any:
    # The number of parts divides the dimension, and a code has at most as many values as images.
    parts = max(m for m in range(1, max(1, dim // _PART_DIM) + 1) if dim % m == 0)
    index = faiss.IndexPQ(dim, parts, min(8, num_images.bit_length() - 1), distance)
    index.pq.cp.niter = _PQ_ITERATIONS
    index.pq.cp.min_points_per_centroid = 1
    return index


def _make_hnsw(dim: int, _: int, distance: int) -> Any:
    index = faiss.IndexHNSWFlat(dim, _HNSW_LINKS, distance)
    index.hnsw.efSearch = _HNSW_DEPTH
    return index


def _make_ivf(dim: int, num_images: int, distance: int) -> Any:
    num_lists = max(1, round(num_images**0.5))
    is_cosine = distance == faiss.METRIC_INNER_PRODUCT
    quantizer = faiss.IndexFlatIP(dim) if is_cosine else faiss.IndexFlatL2(dim)
    index = faiss.IndexIVFFlat(quantizer, dim, num_lists, distance)
    index.cp.min_points_per_centroid = 1
    index.nprobe = max(1, num_lists // _IVF_SHARE)
    return index


_MAKERS: dict[str, Callable[[int, int, int], Any]] = {
    "int8": _make_int8,
    "pq": _make_pq,
    "hnsw": _make_hnsw,
    "ivf": _make_ivf,
}


def score_index(index: SearchIndex, task: SearchTask) -> float:
    """Returns R@1 of an index: a query without any neighbour counts as failed."""
    distances, places = index.search(index.queries_of(task), min(2, len(task.gallery)))
    if places.shape[1] == 2:
        # As in an exact evaluation, the earlier one of two ties comes first.
        is_swapped = (distances[:, 0] == distances[:, 1]) & (places[:, 1] < places[:, 0])
        is_swapped &= places[:, 1] >= 0
        places[is_swapped] = places[is_swapped][:, ::-1]
    is_own = places[:, 0] == task.own
    nearest = np.where(is_own, places[:, -1], places[:, 0])
    is_hit = (nearest >= 0) & (task.gallery_labels[nearest] == task.query_labels)
    return float(is_hit.mean())


def time_queries(index: SearchIndex, task: SearchTask, *, count: int) -> float:
    """Returns the queries a second, searched one at a time, as a service receives them."""
    queries = index.queries_of(task)[:count]
    started = time.perf_counter()
    for place in range(len(queries)):
        index.search(queries[place : place + 1], 2)
    return len(queries) / (time.perf_counter() - started)


def measure_search_cost(
    winners: Sequence[WinnerFolder], budget: SearchBudget | None = None
) -> Measured:
    """Returns R@1, bytes of an image and queries a second of each index, by arm.

    Each winner's test images are searched as in its evaluation, so the R@1 of float32 is
    `test.recall_at_1`, and that of bits is `test.binary_recall_at_1`. R@1 and bytes are by seed.
    The speed is that of the arm's first seed, by round; the indexes alternate in each round. It
    uses one thread.
    """
    measured, timed = Measured(), set[str]()
    for winner in winners:
        checkpoint = winner.load()
        images, info = open_test(checkpoint.config.data)
        embeddings = embed_with_checkpoint(checkpoint, images, content_hash=info.content_hash)
        task = make_task(embeddings, images, metric=checkpoint.config.retrieval_metric)
        if not len(task.queries):
            continue
        with limited_threads(1):
            indexes = {kind: build_search_index(kind, task) for kind in SEARCH_INDEXES}
            for kind, index in indexes.items():
                recall, size = score_index(index, task), index.bytes_per_image(len(task.gallery))
                measured.add_scalar(f"search.{kind}_recall_at_1", winner.arm, winner.seed, recall)
                measured.add_scalar(f"search.{kind}_bytes", winner.arm, winner.seed, size)
            if winner.arm not in timed:
                timed.add(winner.arm)
                _time_rounds(measured, winner.arm, indexes, task, budget or SearchBudget())
    return measured


def _time_rounds(
    measured: Measured,
    arm: str,
    indexes: dict[str, SearchIndex],
    task: SearchTask,
    budget: SearchBudget,
) -> None:
    for index in indexes.values():
        time_queries(index, task, count=budget.queries // 10 + 1)
    for number in range(budget.rounds):
        for kind, index in indexes.items():
            speed = time_queries(index, task, count=budget.queries)
            measured.add_scalar(f"search.{kind}_queries_per_second", arm, number, speed)
