"""Metrics over continuous labels by their definitions, in plain loops."""

import math

from tests.references.retrieval import mean


def label_distance(first, second):
    return math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(first, second, strict=True)))


def mean_label_distance(rankings, query_labels, gallery_labels, k):
    return mean(
        [
            mean([label_distance(label, gallery_labels[index]) for index in ranking[:k]])
            for ranking, label in zip(rankings, query_labels, strict=True)
        ]
    )


def gain(distances, k):
    return sum(
        1 / (1 + distance) / math.log2(rank + 1)
        for rank, distance in enumerate(distances[:k], start=1)
    )


def ndcg(rankings, query_labels, gallery_labels, k):
    """Rankings must hold the whole gallery (without the query), so that sorting them is ideal."""
    shares = []
    for ranking, label in zip(rankings, query_labels, strict=True):
        distances = [label_distance(label, gallery_labels[index]) for index in ranking]
        shares.append(gain(distances, k) / gain(sorted(distances), k))
    return mean(shares)
