"""The pair losses as their formulas say it, with plain loops over plain numbers.

`negatives[a]` lists the distances (or similarities) of anchor a's negatives; without it they are
those of all samples of other classes.
"""

import math

from torch import Tensor


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length > 0 else vector


def dot(left: list[float], right: list[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))


def distance(left: list[float], right: list[float]) -> float:
    squared = sum((x - y) ** 2 for x, y in zip(left, right, strict=True))
    return math.sqrt(max(squared, 1e-12))


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def unit_rows(embeddings: Tensor) -> list[list[float]]:
    return [unit(row) for row in embeddings.tolist()]


def positions(labels: Tensor, anchor: int, *, same: bool) -> list[int]:
    names = labels.tolist()
    others = [i for i in range(len(names)) if i != anchor]
    return [i for i in others if (names[i] == names[anchor]) == same]


def _original_negatives(rows, labels, measure):
    return [
        [measure(rows[a], rows[n]) for n in positions(labels, a, same=False)]
        for a in range(len(rows))
    ]


def contrastive(embeddings, labels, *, positive_margin, negative_margin):
    rows = unit_rows(embeddings)
    pulls, pushes = [], []
    for a in range(len(rows)):
        for p in positions(labels, a, same=True):
            d = distance(rows[a], rows[p])
            if d > positive_margin and d > 1e-6:
                pulls.append(d - positive_margin)
        for n in positions(labels, a, same=False):
            d = distance(rows[a], rows[n])
            if d < negative_margin:
                pushes.append(negative_margin - d)
    return mean(pulls) + mean(pushes)


def triplet(embeddings, labels, *, margin, mining, negatives=None):
    rows = unit_rows(embeddings)
    negatives = negatives or _original_negatives(rows, labels, distance)
    kept = []
    for a in range(len(rows)):
        near = [distance(rows[a], rows[p]) for p in positions(labels, a, same=True)]
        if mining == "hard":
            if near and negatives[a]:
                kept.append(max(0.0, max(near) - min(negatives[a]) + margin))
            continue
        for d_ap in near:
            for d_an in negatives[a]:
                hinge = d_ap - d_an + margin
                if hinge > 0 and (mining == "all" or d_ap < d_an):
                    kept.append(hinge)
    return mean(kept)


def lifted_structure(embeddings, labels, *, margin, negatives=None):
    rows = unit_rows(embeddings)
    negatives = negatives or _original_negatives(rows, labels, distance)
    costs = []
    for i in range(len(rows)):
        for j in positions(labels, i, same=True):
            push = sum(math.exp(margin - d) for d in negatives[i] + negatives[j])
            cost = math.log(push) + distance(rows[i], rows[j]) if push > 0 else 0.0
            costs.append(max(0.0, cost) ** 2 / 2)
    return mean(costs)


def n_pair(embeddings, labels, *, normalize, scale, l2_weight, negatives=None):
    raw = embeddings.tolist()
    rows = unit_rows(embeddings) if normalize else raw
    names = labels.tolist()
    pairs = []
    for name in sorted(set(names)):
        members = [i for i in range(len(names)) if names[i] == name]
        if len(members) >= 2:
            pairs.append((members[0], members[1]))
    if not pairs:
        return 0.0
    costs = []
    for a, p in pairs:
        own = scale * dot(rows[a], rows[p])
        if negatives is None:
            others = [dot(rows[a], rows[other]) for _, other in pairs if other != p]
        else:
            others = negatives[a]
        costs.append(math.log(1 + sum(math.exp(scale * s - own) for s in others)))
    return mean(costs) + l2_weight * mean([dot(row, row) for row in raw])


def multi_similarity(embeddings, labels, *, alpha, beta, base, epsilon, negatives=None):
    rows = unit_rows(embeddings)
    negatives = negatives or _original_negatives(rows, labels, dot)
    costs = []
    for a in range(len(rows)):
        near = [dot(rows[a], rows[p]) for p in positions(labels, a, same=True)]
        far = negatives[a]
        if epsilon is not None:
            kept_near = [s for s in near if far and s < max(far) + epsilon]
            kept_far = [s for s in far if near and s > min(near) - epsilon]
            near, far = kept_near, kept_far
        pull = math.log(1 + sum(math.exp(-alpha * (s - base)) for s in near)) / alpha
        push = math.log(1 + sum(math.exp(beta * (s - base)) for s in far)) / beta
        costs.append(pull + push)
    return mean(costs)


def with_memory(name, batch, past, **knobs):
    """A loss over the batch, whose anchors also meet the past: anchors are in the batch alone."""
    rows = unit_rows(batch[0]) + unit_rows(past[0])
    names = batch[1].tolist() + past[1].tolist()
    size = len(batch[1])

    def others(i, *, same, within=None):
        candidates = range(len(rows) if within is None else within)
        return [j for j in candidates if j != i and (names[j] == names[i]) == same]

    anchors = range(size)
    return _WITH_MEMORY[name](rows, others, anchors, size, **knobs)


def _contrastive_memory(rows, others, anchors, size, *, positive_margin, negative_margin):
    near = [distance(rows[i], rows[j]) for i in anchors for j in others(i, same=True)]
    far = [distance(rows[i], rows[j]) for i in anchors for j in others(i, same=False)]
    pulls = [d - positive_margin for d in near if d > positive_margin and d > 1e-6]
    return mean(pulls) + mean([negative_margin - d for d in far if d < negative_margin])


def _triplet_memory(rows, others, anchors, size, *, margin, mining):
    kept = []
    for a in anchors:
        near = [distance(rows[a], rows[j]) for j in others(a, same=True)]
        far = [distance(rows[a], rows[j]) for j in others(a, same=False)]
        if mining == "hard":
            kept += [max(0.0, max(near) - min(far) + margin)] if near and far else []
            continue
        hinges = [(p, n) for p in near for n in far if p - n + margin > 0]
        kept += [p - n + margin for p, n in hinges if mining == "all" or p < n]
    return mean(kept)


def _lifted_memory(rows, others, anchors, size, *, margin):
    costs = []
    for i in anchors:
        for j in others(i, same=True):
            # A pair has an end in the batch: an image of the memory meets the batch alone.
            of_j = others(j, same=False, within=None if j < size else size)
            ends = [(i, n) for n in others(i, same=False)] + [(j, n) for n in of_j]
            push = sum(math.exp(margin - distance(rows[a], rows[n])) for a, n in ends)
            cost = math.log(push) + distance(rows[i], rows[j]) if push > 0 else 0.0
            costs.append(max(0.0, cost) ** 2 / 2)
    return mean(costs)


def _multi_similarity_memory(rows, others, anchors, size, *, alpha, beta, base, epsilon):
    costs = []
    for a in anchors:
        near = [dot(rows[a], rows[j]) for j in others(a, same=True)]
        far = [dot(rows[a], rows[j]) for j in others(a, same=False)]
        if epsilon is not None:
            kept_near = [s for s in near if far and s < max(far) + epsilon]
            kept_far = [s for s in far if near and s > min(near) - epsilon]
            near, far = kept_near, kept_far
        pull = math.log(1 + sum(math.exp(-alpha * (s - base)) for s in near)) / alpha
        push = math.log(1 + sum(math.exp(beta * (s - base)) for s in far)) / beta
        costs.append(pull + push)
    return mean(costs)


_WITH_MEMORY = {
    "contrastive": _contrastive_memory,
    "triplet": _triplet_memory,
    "lifted_structure": _lifted_memory,
    "multi_similarity": _multi_similarity_memory,
}
