"""Scores retrieval by class: of images, and of synthetic points between images of a class."""

# B = queries of a block, G = gallery items, K = neighbours, Q = queries, R = relevant per query
# B = queries of a block, D = embedding dim, G = images, K = neighbours, P = pairs
# N = synthetic points of a pair

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from dml_core.evaluation.arrays import (
    BoolArray,
    DoubleArray,
    FloatArray,
    Frame,
    IntArray,
    Metric,
    check_ranks,
)
from dml_core.evaluation.neighbors import (
    NeighborBlock,
    build_index,
    search_in_blocks,
    shuffled_order,
)
from dml_core.losses.expansion import pairs_in_batch_order

SHALLOW = 128
"""Neighbours whose selection is cheap beside the distances: selecting a thousand neighbours of a
query takes longer than its distances to ten thousand items."""


class FindNeighbors(Protocol):
    """A search for the nearest neighbours of queries, such as `NeighborSearch`."""

    def __call__(
        self, num_neighbors: int, rows: IntArray | None = None, /
    ) -> Iterable[NeighborBlock]:
        """Returns blocks of nearest neighbours of all queries, or of the given rows, in order."""


@dataclass(frozen=True)
class RetrievalScores:
    """Means over the queries that have a relevant item; all NaN if there is none."""

    recall_at: dict[int, float]
    """By K, the share of queries with a relevant item among the K nearest."""
    r_precision: float
    """Share of relevant items among the R nearest."""
    map_at_r: float
    """Mean of (1/R) times the sum of the precisions at the relevant ranks up to R."""
    num_queries: int
    """Queries with a relevant item in the gallery."""
    num_queries_left_out: int
    """Queries without a relevant item in the gallery; no score counts them."""

    def named(self, prefix: str = "") -> dict[str, float]:
        """Returns the scores without the counts, under the names used in reports."""
        recalls = {f"{prefix}recall_at_{k}": score for k, score in self.recall_at.items()}
        return recalls | {
            f"{prefix}r_precision": self.r_precision,
            f"{prefix}map_at_r": self.map_at_r,
        }


def score_retrieval(
    find_neighbors: FindNeighbors,
    query_labels: IntArray,
    gallery_labels: IntArray | None = None,
    *,
    recall_at: tuple[int, ...],
) -> RetrievalScores:
    """Returns R@K, R-precision and MAP@R as in "A Metric Learning Reality Check".

    Args:
        find_neighbors: search for neighbours, called with the larger of the largest K and the
            largest R. If K is far larger, it is first called with fewer, and then with K for the
            queries without a hit: beyond rank R only the first hit counts.
        query_labels: (Q,) class ids.
        gallery_labels: (G,) class ids; None if the queries are the gallery, whose neighbours must
            then exclude the query itself.
        recall_at: values of K for R@K; a K beyond the gallery uses all of it.

    Example:
        R = 3 and neighbours hit, miss, hit give MAP@R (1/1 + 2/3) / 3 = 5/9.
    """
    check_ranks(recall_at, name="recall_at")
    searched_labels = query_labels if gallery_labels is None else gallery_labels
    query_codes, gallery_codes = _class_codes(query_labels, searched_labels)
    num_relevant = count_relevant(query_labels, gallery_labels)
    max_relevant = int(num_relevant.max(initial=0))
    depth, full_depth = _search_depths(max_relevant, recall_at)
    rows = []
    if max_relevant:
        for block, neighbors in find_neighbors(depth):
            counts = num_relevant[block] > 0
            is_hit = gallery_codes[neighbors] == query_codes[block, None]
            rows.append(_score_queries(is_hit[counts], num_relevant[block][counts], max_relevant))
    per_query = np.concatenate(rows, axis=1) if rows else np.empty((3, 0))
    late = np.flatnonzero(num_relevant)[np.isinf(per_query[0])]
    if depth < full_depth and len(late):
        blocks = find_neighbors(full_depth, late)
        hits = (gallery_codes[found] == query_codes[late[b], None] for b, found in blocks)
        per_query[0, np.isinf(per_query[0])] = np.concatenate([_first_ranks(h) for h in hits])
    return _summarise(per_query, recall_at=recall_at, num_all=len(query_labels))


def _search_depths(max_relevant: int, recall_at: tuple[int, ...]) -> tuple[int, int]:
    """Returns the number of neighbours for all queries, and for those without a hit."""
    full = max([max_relevant, *recall_at])
    first = max(max_relevant, SHALLOW)
    return (first, full) if full > 2 * first else (full, full)


def count_relevant(query_labels: IntArray, gallery_labels: IntArray | None = None) -> IntArray:
    """Returns the (Q,) numbers R of gallery items of each query's class, without the query."""
    searched_labels = query_labels if gallery_labels is None else gallery_labels
    classes, counts = np.unique(searched_labels, return_counts=True)
    place = np.searchsorted(classes, query_labels).clip(max=len(classes) - 1)
    found = np.where(classes[place] == query_labels, counts[place], 0)
    return found - 1 if gallery_labels is None else found


def _class_codes(
    query_labels: IntArray, gallery_labels: IntArray
) -> tuple["np.ndarray[tuple[int, ...], np.dtype[np.int32]]", ...]:
    """Returns class indices as int32, which halves the memory traffic of gathering them."""
    _, codes = np.unique(np.concatenate([query_labels, gallery_labels]), return_inverse=True)
    small = codes.astype(np.int32)
    return small[: len(query_labels)], small[len(query_labels) :]


def _score_queries(is_hit: BoolArray, num_relevant: IntArray, max_relevant: int) -> DoubleArray:
    """Returns (3, B): rank of the first hit (or infinity), R-precision, average precision."""
    # Columns up to the largest R of all queries, not of the block: a sum over more zeros rounds
    # differently, and the result must not depend on the blocks.
    ranks = np.arange(1, max_relevant + 1)
    counts = is_hit[:, :max_relevant] & (ranks <= num_relevant[:, None])
    found = np.cumsum(counts, axis=1, dtype=np.int32)
    precisions = np.where(counts, found / ranks, 0.0)
    averages = precisions.sum(axis=1) / num_relevant
    return np.stack([_first_ranks(is_hit), found[:, -1] / num_relevant, averages])


def _first_ranks(is_hit: BoolArray) -> DoubleArray:
    """Returns the (B,) rank of each query's first hit; infinite without one."""
    first = is_hit.argmax(axis=1)
    return np.where(is_hit[np.arange(len(is_hit)), first], first + 1.0, np.inf)


def _summarise(
    per_query: DoubleArray, *, recall_at: tuple[int, ...], num_all: int
) -> RetrievalScores:
    first_rank, r_precision, average_precision = per_query
    num_queries = len(first_rank)
    return RetrievalScores(
        recall_at={k: _mean((first_rank <= k).astype(np.float64)) for k in recall_at},
        r_precision=_mean(r_precision),
        map_at_r=_mean(average_precision),
        num_queries=num_queries,
        num_queries_left_out=num_all - num_queries,
    )


def _mean(values: DoubleArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def score_synthetic(
    embeddings: FloatArray,
    labels: IntArray,
    *,
    points: int,
    metric: Metric,
    recall_at: tuple[int, ...],
    block_size: int = 1024,
) -> dict[int, float]:
    """Returns by K the share of synthetic points with their class among the K nearest images.

    The images of each class are paired in their order (first with second, third with fourth).
    Point k of N between the two is (k * later + (N + 1 - k) * earlier) / (N + 1), as in Embedding
    Expansion (Ko and Gu, 2020). For cosine it is scaled to unit length. Each point is searched
    among all images except the two ends of its own pair, which it would find trivially.

    Points of a class with only two images have nothing to find and do not count. The result is
    empty if no point is left.

    Args:
        embeddings: (G, D) finite embeddings.
        labels: (G,) class ids.
        points: N, at least 1.
        metric: distance that the embeddings were trained for.
        recall_at: values of K.
        block_size: most points at once; bounds the memory and does not change the result.
    """
    check_ranks(recall_at, name="recall_at")
    ends = _pairs_with_relevant_items(labels)
    num_queries = ends.shape[1] * points
    if num_queries == 0:
        return {}
    frame, order = Frame.around(embeddings, metric=metric), shuffled_order(len(embeddings))
    index = build_index(frame.place(embeddings)[order], metric=metric)

    def search(block: slice, count: int) -> tuple[Any, IntArray]:
        queries = _make_points(embeddings, ends, np.arange(block.start, block.stop), points=points)
        distances, positions = index.search(frame.place(queries), count)
        return distances, positions

    blocks = search_in_blocks(
        search,
        num_queries=num_queries,
        order=order,
        removes_self=False,
        # The two ends may be among the nearest.
        num_neighbors=max(recall_at) + 2,
        block_size=block_size,
    )
    ranks = []
    for block, neighbors in blocks:
        pairs = np.arange(block.start, block.stop) // points
        is_end = (neighbors == ends[0, pairs, None]) | (neighbors == ends[1, pairs, None])
        is_hit = ~is_end & (labels[neighbors] == labels[ends[0, pairs], None])
        ranks.append(_first_ranks_without_ends(is_hit, is_end))
    first_rank = np.concatenate(ranks)
    return {k: float((first_rank <= k).mean()) for k in recall_at}


def _pairs_with_relevant_items(labels: IntArray) -> IntArray:
    """Returns the (2, P) earlier and later image of each pair whose class has a third image."""
    pairs = pairs_in_batch_order(torch.tensor(labels))
    ends: IntArray = np.stack([pairs.first.numpy(), pairs.second.numpy()])
    # R counts the other images of the class: two or more leave one beside the partner.
    return ends[:, count_relevant(labels)[ends[0]] > 1]


def _make_points(
    embeddings: FloatArray, ends: IntArray, numbers: IntArray, *, points: int
) -> FloatArray:
    """Returns the (B, D) points with these numbers, counted pair by pair."""
    first, second = ends[:, numbers // points]
    later = ((numbers % points + 1) / (points + 1)).astype(np.float32)[:, None]
    mixed: FloatArray = (1 - later) * embeddings[first] + later * embeddings[second]
    return mixed


def _first_ranks_without_ends(is_hit: BoolArray, is_end: BoolArray) -> DoubleArray:
    """Returns the (B,) rank of each point's first hit without the ends; infinite without one."""
    column = is_hit.argmax(axis=1)
    rows = np.arange(len(is_hit))
    ranks = (~is_end).cumsum(axis=1)[rows, column]
    return np.where(is_hit[rows, column], ranks, np.inf)
