"""Retrieval metrics by their definitions, in plain loops."""

import math


def squared_distance(first, second):
    return sum((float(a) - float(b)) ** 2 for a, b in zip(first, second, strict=True))


def negative_cosine(first, second):
    product = sum(float(a) * float(b) for a, b in zip(first, second, strict=True))
    lengths = [math.sqrt(sum(float(a) ** 2 for a in vector)) for vector in (first, second)]
    return -product / (lengths[0] * lengths[1]) if all(lengths) else 0.0


def hamming_distance(first, second):
    return sum((a > 0) != (b > 0) for a, b in zip(first, second, strict=True))


DISTANCES = {
    "cosine": negative_cosine,
    "euclidean": squared_distance,
    "hamming": hamming_distance,
}


def distances_to_gallery(queries, gallery, *, metric):
    """For each query a list of (distance, gallery index); with gallery None, without itself."""
    searched = queries if gallery is None else gallery
    return [
        [
            (DISTANCES[metric](query, item), index)
            for index, item in enumerate(searched)
            if gallery is not None or index != query_index
        ]
        for query_index, query in enumerate(queries)
    ]


def rank_gallery(queries, gallery, *, metric):
    """For each query the gallery indices, nearest first."""
    return [
        [index for _, index in sorted(pairs)]
        for pairs in distances_to_gallery(queries, gallery, metric=metric)
    ]


def score_rankings(rankings, query_labels, gallery_labels, *, recall_at):
    """The names and values of a RetrievalScores from complete rankings of the gallery."""
    recalls = {k: [] for k in recall_at}
    r_precisions, average_precisions, num_left_out = [], [], 0
    for ranking, label in zip(rankings, query_labels, strict=True):
        hits = [int(gallery_labels[index]) == int(label) for index in ranking]
        num_relevant = sum(hits)
        if num_relevant == 0:
            num_left_out += 1
            continue
        for k in recall_at:
            recalls[k].append(any(hits[:k]))
        r_precisions.append(sum(hits[:num_relevant]) / num_relevant)
        total = 0.0
        for rank in range(1, num_relevant + 1):
            if hits[rank - 1]:
                total += sum(hits[:rank]) / rank
        average_precisions.append(total / num_relevant)
    return {
        "recall_at": {k: mean(values) for k, values in recalls.items()},
        "r_precision": mean(r_precisions),
        "map_at_r": mean(average_precisions),
        "num_queries": len(r_precisions),
        "num_queries_left_out": num_left_out,
    }


def mean(values):
    return sum(values) / len(values) if values else math.nan
