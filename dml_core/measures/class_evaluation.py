"""Scores a model by class, and draws a failed query of each of its worst classes."""

# Q = queries

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dml_core.data.prepared import ImageSet
from dml_core.evaluation.arrays import FloatArray, IntArray, Metric, split_by_role
from dml_core.evaluation.neighbors import NeighborSearch
from dml_core.evaluation.retrieval import count_relevant
from dml_core.evaluation.retrieval_grid import (
    draw_retrieval_grid,
    find_examples,
    save_retrieval_grid,
)
from dml_core.measures.class_scores import (
    WORST_FILE,
    ClassScore,
    find_worst,
    write_class_scores,
)


def score_classes(
    embeddings: FloatArray, images: ImageSet, *, metric: Metric
) -> tuple[list[ClassScore], dict[str, int]]:
    """Returns the classes with a query, by name, and of each that has one a query that fails.

    Args:
        embeddings: (N, D) embeddings of all images.
        images: the embedded images; with roles, queries are searched in the gallery.
        metric: distance that the embeddings were trained for.
    """
    rows, nearest = _find_nearest(embeddings, images, metric)
    labels, found = images.labels[rows], images.labels[nearest]
    sizes = np.bincount(images.labels, minlength=images.num_classes)
    scores, failures = [], {}
    for label in np.unique(labels).tolist():
        own = np.flatnonzero(labels == label)
        wrong = own[found[own] != label]
        name = images.class_names[label]
        scores.append(
            ClassScore(
                name=name,
                num_images=int(sizes[label]),
                num_queries=len(own),
                recall_at_1=(len(own) - len(wrong)) / len(own),
                found_instead=_most_frequent([images.class_names[i] for i in found[wrong]]),
            )
        )
        if len(wrong):
            failures[name] = int(rows[wrong[0]])
    return sorted(scores, key=lambda score: score.name), failures


def _find_nearest(
    embeddings: FloatArray, images: ImageSet, metric: Metric
) -> tuple[IntArray, IntArray]:
    """Returns the (Q,) queries that have something to find, and the nearest image of each."""
    sets = split_by_role(images.roles, num_rows=len(images))
    query_rows, gallery_rows = sets.split(np.arange(len(images)))
    searched = query_rows if gallery_rows is None else gallery_rows
    counts = count_relevant(*sets.split(images.labels)) > 0
    if not counts.any():
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing
    blocks = NeighborSearch(*sets.split(embeddings), metric=metric)(1)
    nearest = np.concatenate([neighbors[:, 0] for _, neighbors in blocks])
    return query_rows[counts], searched[nearest[counts]]


def _most_frequent(names: Sequence[str]) -> str:
    counts = Counter(names)
    return min(counts, key=lambda name: (-counts[name], name), default="")


def write_classes(
    embeddings: FloatArray, images: ImageSet, folder: Path, *, metric: Metric
) -> None:
    """Writes classes.csv and the picture of the worst classes; nothing without a query.

    The picture is absent if no query fails.
    """
    scores, failures = score_classes(embeddings, images, metric=metric)
    if not scores:
        return
    write_class_scores(scores, folder)
    worst = [score.name for score in find_worst(scores)]
    if worst:
        queries = np.array([failures[name] for name in worst])
        found = find_examples(embeddings, images, metric=metric, queries=queries)
        picture = draw_retrieval_grid(images, found, names=worst)
        save_retrieval_grid(picture, folder / WORST_FILE)
