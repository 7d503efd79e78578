"""Operating points by their definition, in plain loops."""

import math
from fractions import Fraction

from tests.references.retrieval import DISTANCES


def list_pairs(queries, gallery=None, *, metric):
    """(distance, query, item) of each pair; without a gallery each two images once."""
    return [
        # Rounding errors of a cosine would separate ties.
        (round(DISTANCES[metric](query, item), 9), row, column)
        for row, query in enumerate(queries)
        for column, item in enumerate(queries if gallery is None else gallery)
        if gallery is not None or row < column
    ]


def operating_point(queries, labels, gallery=None, gallery_labels=None, *, rate, metric):
    """(threshold, false non-match rate) at a false match rate; None without pairs of a kind."""
    searched = labels if gallery_labels is None else gallery_labels
    same, other = [], []
    for distance, row, column in list_pairs(queries, gallery, metric=metric):
        (same if labels[row] == searched[column] else other).append(distance)
    if not same or not other:
        return None
    # The largest threshold below which at most this share of the other pairs lies.
    threshold = max(
        limit
        for limit in other
        if Fraction(sum(distance < limit for distance in other), len(other)) <= Fraction(str(rate))
    )
    missed = sum(distance >= threshold for distance in same) / len(same)
    return (-threshold if metric == "cosine" else math.sqrt(threshold)), missed
