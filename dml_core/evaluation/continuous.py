"""Scores retrieval by continuous labels: label distances of the nearest embeddings."""

# B = queries of a block, G = gallery items, K = neighbours, L = label columns, Q = queries

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dml_core.evaluation.arrays import DoubleArray, IntArray, check_ranks
from dml_core.evaluation.neighbors import query_blocks
from dml_core.evaluation.retrieval import FindNeighbors


@dataclass(frozen=True)
class ContinuousScores:
    """Scores of retrieval by continuous labels, as means over the queries."""

    mean_label_distance_at: dict[int, float]
    """By K, the mean Euclidean label distance of the K nearest; lower is better."""
    ndcg_at: dict[int, float]
    """By K, the discounted gain relative to the best possible one; 1 is a perfect order."""

    def named(self) -> dict[str, float]:
        """Returns the scores under the names used in every report."""
        distances = {
            f"mean_label_distance_at_{k}": value for k, value in self.mean_label_distance_at.items()
        }
        return distances | {f"ndcg_at_{k}": value for k, value in self.ndcg_at.items()}


def score_continuous(
    find_neighbors: FindNeighbors,
    query_labels: DoubleArray,
    gallery_labels: DoubleArray | None = None,
    *,
    label_at: tuple[int, ...],
    ndcg_at: tuple[int, ...],
    block_size: int = 1024,
) -> ContinuousScores:
    """Returns mean label distance@K and nDCG@K (relevance 1/(1+d), discount 1/log2(rank+1)).

    Args:
        find_neighbors: search for neighbours, called once with the largest K.
        query_labels: (Q, L) finite labels.
        gallery_labels: (G, L); None if the queries are the gallery without the query itself.
        label_at: values of K for the mean label distance.
        ndcg_at: values of K for nDCG; a K beyond the gallery uses all of it.
        block_size: most queries at once; does not change the result.

    Raises:
        ValueError: when the gallery holds no item besides the query.
    """
    check_ranks(label_at, name="label_at")
    check_ranks(ndcg_at, name="ndcg_at")
    largest = max([*label_at, *ndcg_at], default=0)
    if largest == 0:
        return ContinuousScores({}, {})
    searched = query_labels if gallery_labels is None else gallery_labels
    _check_gallery(num_others=len(searched) - int(gallery_labels is None))
    found = _found_distances(find_neighbors(largest), query_labels, searched, k=largest)
    if not ndcg_at:
        return ContinuousScores(_mean_distances(found, label_at), {})
    nearest = nearest_label_distances(
        query_labels, gallery_labels, num_nearest=found.shape[1], block_size=block_size
    )
    ndcg = {k: float((_gain(found, k) / _gain(nearest, k)).mean()) for k in ndcg_at}
    return ContinuousScores(_mean_distances(found, label_at), ndcg)


def nearest_label_distances(
    query_labels: DoubleArray,
    gallery_labels: DoubleArray | None = None,
    *,
    num_nearest: int,
    block_size: int = 1024,
) -> DoubleArray:
    """Returns the (Q, K) smallest label distances of each query, ascending: the ideal ranking.

    Without a gallery the queries are searched, without each query's distance to itself.
    """
    # Late: few studies have continuous labels, and every worker would wait for scipy.
    from scipy.spatial.distance import cdist

    searched = query_labels if gallery_labels is None else gallery_labels
    skipped = int(gallery_labels is None)
    count = min(num_nearest, len(searched) - skipped) + skipped
    nearest = np.empty((len(query_labels), count - skipped))
    blocks = query_blocks(len(query_labels), block_size=block_size, row_length=len(searched))
    for block in blocks:
        distances = cdist(query_labels[block], searched)
        distances.partition(count - 1, axis=1)
        smallest = np.sort(distances[:, :count], axis=1)
        # A query has distance 0 to itself, so one of the smallest distances is its own.
        nearest[block] = smallest[:, skipped:]
    return nearest


def _check_gallery(*, num_others: int) -> None:
    if num_others < 1:
        raise ValueError(
            "evaluation: continuous labels need at least one gallery item besides the query, "
            f"since a distance needs two images. Got {num_others}. Evaluate more images."
        )


def _found_distances(
    blocks: Iterable[tuple[slice, IntArray]],
    query_labels: DoubleArray,
    gallery_labels: DoubleArray,
    *,
    k: int,
) -> DoubleArray:
    """Returns (Q, K) label distances of the neighbours, in the order of the embeddings."""
    found = np.empty((len(query_labels), min(k, len(gallery_labels))))
    width = 0
    for block, neighbors in blocks:
        width = neighbors.shape[1]
        squares = np.zeros(neighbors.shape)
        # Column by column, so that memory does not grow with L.
        for queries, items in zip(query_labels.T, gallery_labels.T, strict=True):
            squares += (queries[block, None] - items[neighbors]) ** 2
        found[block, :width] = np.sqrt(squares)
    return found[:, :width]


def _mean_distances(found: DoubleArray, label_at: tuple[int, ...]) -> dict[int, float]:
    return {k: float(found[:, :k].mean(axis=1).mean()) for k in label_at}


def _gain(label_distances: DoubleArray, k: int) -> DoubleArray:
    """Returns the (Q,) sum over the ranks up to k of 1/(1+d) / log2(rank+1)."""
    distances = label_distances[:, :k]
    discounts = 1 / np.log2(np.arange(2, distances.shape[1] + 2))
    gains: DoubleArray = (discounts / (1 + distances)).sum(axis=1)
    return gains
