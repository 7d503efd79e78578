"""Plain-loop definitions of the proxy losses, written from their formulas and nothing else."""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def unit(vector: Vector) -> list[float]:
    """The vector divided by its length."""
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def cosine(left: Vector, right: Vector) -> float:
    """Cosine of the angle between two vectors."""
    return sum(a * b for a, b in zip(unit(left), unit(right), strict=True))


def squared_distance(left: Vector, right: Vector) -> float:
    """Squared Euclidean distance between the unit vectors of two vectors."""
    return sum((a - b) ** 2 for a, b in zip(unit(left), unit(right), strict=True))


def proxy_anchor(
    embeddings: Sequence[Vector],
    labels: Sequence[int],
    proxies: Sequence[Vector],
    *,
    alpha: float,
    delta: float,
) -> float:
    """Mean pull over the proxies of the batch's classes plus mean push over all proxies."""
    pulls, pushes = [], []
    for index, proxy in enumerate(proxies):
        own, others = 0.0, 0.0
        for embedding, label in zip(embeddings, labels, strict=True):
            if label == index:
                own += math.exp(-alpha * (cosine(embedding, proxy) - delta))
            else:
                others += math.exp(alpha * (cosine(embedding, proxy) + delta))
        if index in labels:
            pulls.append(math.log(1 + own))
        pushes.append(math.log(1 + others))
    return sum(pulls) / len(pulls) + sum(pushes) / len(pushes)


def proxy_nca(
    embeddings: Sequence[Vector],
    labels: Sequence[int],
    proxies: Sequence[Vector],
    *,
    scale: float,
    target_in_denominator: bool,
) -> float:
    """Mean over images of -log(own weight / sum of the weights below the line)."""
    losses = []
    for embedding, label in zip(embeddings, labels, strict=True):
        weights = [math.exp(-scale * squared_distance(embedding, proxy)) for proxy in proxies]
        below = [w for k, w in enumerate(weights) if target_in_denominator or k != label]
        losses.append(-math.log(weights[label] / sum(below)))
    return sum(losses) / len(losses)


def norm_softmax(
    embeddings: Sequence[Vector],
    labels: Sequence[int],
    proxies: Sequence[Vector],
    *,
    temperature: float,
) -> float:
    """Mean over images of the cross-entropy of cosine / temperature."""
    losses = []
    for embedding, label in zip(embeddings, labels, strict=True):
        weights = [math.exp(cosine(embedding, proxy) / temperature) for proxy in proxies]
        losses.append(-math.log(weights[label] / sum(weights)))
    return sum(losses) / len(losses)


def arcface(
    embeddings: Sequence[Vector],
    labels: Sequence[int],
    proxies: Sequence[Vector],
    *,
    margin: float,
    scale: float,
) -> float:
    """Mean over images of the cross-entropy in which the own class's angle grows by margin."""
    losses = []
    for embedding, label in zip(embeddings, labels, strict=True):
        angles = [math.acos(max(-1.0, min(1.0, cosine(embedding, p)))) for p in proxies]
        logits = [math.cos(angle) for angle in angles]
        if angles[label] + margin <= math.pi:
            logits[label] = math.cos(angles[label] + margin)
        else:
            logits[label] -= margin * math.sin(margin)
        weights = [math.exp(scale * logit) for logit in logits]
        losses.append(-math.log(weights[label] / sum(weights)))
    return sum(losses) / len(losses)
