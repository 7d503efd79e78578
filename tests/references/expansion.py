"""Embedding Expansion with plain loops: synthetic points and each anchor's hardest negatives."""

from tests.references.pair_losses import distance, dot, unit


def pair_up(labels):
    """Returns the pairs of batch positions: first with second of a class, third with fourth."""
    names, pairs = labels.tolist(), []
    for name in sorted(set(names)):
        members = [i for i in range(len(names)) if names[i] == name]
        pairs += [(members[k], members[k + 1]) for k in range(0, len(members) - 1, 2)]
    return pairs


def points_between(first, second, *, points, normalize):
    """Returns the synthetic points between two vectors, from the first to the second."""
    found = []
    for k in range(1, points + 1):
        mixed = [
            (k * y + (points + 1 - k) * x) / (points + 1)
            for x, y in zip(first, second, strict=True)
        ]
        if normalize:
            ends = (dot(first, first) + dot(second, second)) / 2
            mixed = unit(mixed) if dot(mixed, mixed) > 1e-6 * ends else [0.0] * len(mixed)
        found.append(mixed)
    return found


def hardest_negatives(rows, labels, *, points, normalize, by_similarity):
    """Returns, for each anchor, one distance or similarity for each other class."""
    names = labels.tolist()
    own = {i: [rows[i]] for i in range(len(rows))}
    of_class = {name: [rows[i] for i in range(len(rows)) if names[i] == name] for name in names}
    for first, second in pair_up(labels):
        made = points_between(rows[first], rows[second], points=points, normalize=normalize)
        own[first] = own[first] + made
        own[second] = own[second] + made
        of_class[names[first]] = of_class[names[first]] + made
    negatives = []
    for anchor in range(len(rows)):
        values = []
        for name in sorted(set(names) - {names[anchor]}):
            candidates = [(x, y) for x in own[anchor] for y in of_class[name]]
            if by_similarity:
                values.append(max(dot(x, y) for x, y in candidates))
            else:
                values.append(min(distance(x, y) for x, y in candidates))
        negatives.append(values)
    return negatives
