"""Tells how well synthetic points between images of a class find that class."""

# B = queries of a block, D = embedding dim, G = images, K = neighbours, P = pairs
# N = synthetic points of a pair

from typing import Any

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
from dml_core.evaluation.neighbors import build_index, search_in_blocks, shuffled_order
from dml_core.evaluation.retrieval import count_relevant
from dml_core.losses.expansion import pairs_in_batch_order


def score_synthetic(
    embeddings: FloatArray,
    labels: IntArray,
    *,
    points: int,
    metric: Metric,
    recall_at: tuple[int, ...],
    block_size: int = 1024,
) -> dict[int, float]:
    """Returns for each K the share of synthetic points with their class among the K nearest images.

    The images of each class are paired in their order (first with second, third with fourth), and
    point k of N between the two is (k * later + (N + 1 - k) * earlier) / (N + 1), as Embedding
    Expansion (Ko and Gu, 2020) makes them. Under cosine it is put on the unit sphere. Each is
    searched among all images but the two ends of its own pair, which it would find trivially.

    A class of two images has nothing else to find, so its points are left out; the result is empty
    where nothing is left.

    Args:
        embeddings: (G, D) finite embeddings.
        labels: (G,) class ids.
        points: N, at least 1.
        metric: how points and images are compared.
        recall_at: the K.
        block_size: most points at once; bounds the memory and changes no number.
    """
    check_ranks(recall_at, name="recall_at")
    ends = _pairs_with_something_to_find(labels)
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
        # The two ends may stand among the nearest.
        num_neighbors=max(recall_at) + 2,
        block_size=block_size,
    )
    ranks = []
    for block, neighbors in blocks:
        pairs = np.arange(block.start, block.stop) // points
        is_end = (neighbors == ends[0, pairs, None]) | (neighbors == ends[1, pairs, None])
        is_hit = ~is_end & (labels[neighbors] == labels[ends[0, pairs], None])
        ranks.append(_first_ranks(is_hit, is_end))
    first_rank = np.concatenate(ranks)
    return {k: float((first_rank <= k).mean()) for k in recall_at}


def _pairs_with_something_to_find(labels: IntArray) -> IntArray:
    """(2, P) the earlier and the later image of each pair whose class has a third image."""
    pairs = pairs_in_batch_order(torch.tensor(labels))
    ends: IntArray = np.stack([pairs.first.numpy(), pairs.second.numpy()])
    # Each image counts the others of its class: two or more leave one beyond its partner.
    return ends[:, count_relevant(labels)[ends[0]] > 1]


def _make_points(
    embeddings: FloatArray, ends: IntArray, numbers: IntArray, *, points: int
) -> FloatArray:
    """(B, D) the points with these numbers, counted pair by pair."""
    first, second = ends[:, numbers // points]
    later = ((numbers % points + 1) / (points + 1)).astype(np.float32)[:, None]
    mixed: FloatArray = (1 - later) * embeddings[first] + later * embeddings[second]
    return mixed


def _first_ranks(is_hit: BoolArray, is_end: BoolArray) -> DoubleArray:
    """(B,) the rank of each point's first hit, ends not counted; infinite without one."""
    column = is_hit.argmax(axis=1)
    rows = np.arange(len(is_hit))
    ranks = (~is_end).cumsum(axis=1)[rows, column]
    return np.where(is_hit[rows, column], ranks, np.inf)
