"""The losses on continuous labels as their formulas say it, triplet by triplet."""

import math

from tests.references.pair_losses import mean, unit_rows


def squared(left, right):
    return sum((x - y) ** 2 for x, y in zip(left, right, strict=True))


def ordered_triplets(labels, anchors):
    """Yields (a, i, j) with 0 < D(y_a, y_i) < D(y_a, y_j)."""
    rows = labels.tolist()
    for a in anchors:
        for i in range(len(rows)):
            for j in range(len(rows)):
                nearer, farther = squared(rows[a], rows[i]), squared(rows[a], rows[j])
                if a not in (i, j) and 0 < nearer < farther:
                    yield a, i, j


def log_ratio(embeddings, labels, anchors):
    rows, marks = embeddings.tolist(), labels.tolist()

    def log_distance(x, y):
        return math.log(max(squared(x, y), 1e-12))

    costs = []
    for a, i, j in ordered_triplets(labels, anchors):
        of_embeddings = log_distance(rows[a], rows[i]) - log_distance(rows[a], rows[j])
        of_labels = math.log(squared(marks[a], marks[i]) / squared(marks[a], marks[j]))
        costs.append((of_embeddings - of_labels) ** 2)
    return mean(costs)


def dense_triplet(embeddings, labels, anchors, *, margin):
    rows = unit_rows(embeddings)
    return mean(
        [
            max(0.0, squared(rows[a], rows[i]) - squared(rows[a], rows[j]) + margin)
            for a, i, j in ordered_triplets(labels, anchors)
        ]
    )


def left_out_pairs(labels, anchors):
    rows = labels.tolist()
    return sum(rows[a] == rows[i] for a in anchors for i in range(len(rows)) if i != a)
