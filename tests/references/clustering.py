"""NMI and pair F1 by their definitions, in plain loops."""

import math
from collections import Counter
from itertools import combinations


def entropy(shares):
    return -sum(share * math.log(share) for share in shares if share > 0)


def nmi(labels, clusters):
    """2 I(Y;C) / (H(Y) + H(C)), with I from the joint shares."""
    total = len(labels)
    label_counts, cluster_counts = Counter(labels), Counter(clusters)
    information = 0.0
    for (label, cluster), count in Counter(zip(labels, clusters, strict=True)).items():
        expected = label_counts[label] * cluster_counts[cluster] / total**2
        information += count / total * math.log(count / total / expected)
    entropies = [
        entropy(count / total for count in counts.values())
        for counts in (label_counts, cluster_counts)
    ]
    return 2 * information / sum(entropies) if sum(entropies) else 1.0


def pair_f1(labels, clusters):
    """F1 over all pairs of items."""
    true_positive = false_positive = false_negative = 0
    for first, second in combinations(range(len(labels)), 2):
        same_label = labels[first] == labels[second]
        same_cluster = clusters[first] == clusters[second]
        true_positive += same_label and same_cluster
        false_positive += same_cluster and not same_label
        false_negative += same_label and not same_cluster
    denominator = 2 * true_positive + false_positive + false_negative
    return 2 * true_positive / denominator if denominator else 1.0
