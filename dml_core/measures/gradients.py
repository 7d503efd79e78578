"""Measures the gradient of a proxy loss by the hardness of a pair."""

# B = batch, C = classes, D = embedding dim, P = pairs

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dml_core.data.prepared import DevelopmentData, open_development
from dml_core.evaluation.arrays import DoubleArray
from dml_core.losses.proxies import MASKED, ProxyLogits, ProxyLoss
from dml_core.measures.results import Curve, Measured, WinnerFolder
from dml_core.training.checkpoint import Checkpoint
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import training_batches
from dml_core.training.state import TrialState, build_state, restore_state


def cosine_similarities(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Returns the (B, C) cosines of (B, D) embeddings with (C, D) proxies, in float64."""
    return functional.normalize(embeddings.double()) @ functional.normalize(proxies.double()).T


def loss_of_similarities(loss: ProxyLoss, similarities: Tensor, labels: Tensor) -> Tensor:
    """Returns the scalar loss as a differentiable function of the cosines.

    All proxies take part, even if training samples them.

    Args:
        loss: a loss with proxies; only their number is used.
        similarities: (B, C).
        labels: (B,) class indices.
    """
    logits = similarities * loss.logit_scale
    column = labels.unsqueeze(1)
    target = logits.gather(1, column).squeeze(1)
    others = logits.scatter(1, column, MASKED)
    rest = torch.logsumexp(others, dim=0 if loss.sum_over == "images" else 1)
    unused = torch.zeros((), dtype=logits.dtype, device=logits.device)
    parts = ProxyLogits(target, rest, mean_other=unused)
    return loss.reduce_logits(parts, labels, num_proxies=similarities.shape[1])


def similarity_gradients(loss: ProxyLoss, similarities: Tensor, labels: Tensor) -> Tensor:
    """Returns the (B, C) partial derivatives of the loss by each cosine."""
    leaf = similarities.detach().requires_grad_(True)
    with torch.enable_grad():
        value = loss_of_similarities(loss, leaf, labels)
    (gradients,) = torch.autograd.grad(value, leaf)
    return gradients


BIN_WIDTH = 0.05
"""Width of a bin of cosines; fixed, so that curves of different models share their x values."""
MIN_PAIRS = 5
"""Bins with fewer pairs are omitted."""


def average_by_bin(
    hardness: DoubleArray,
    values: DoubleArray,
    *,
    width: float = BIN_WIDTH,
    min_pairs: int = MIN_PAIRS,
) -> Curve:
    """Returns (centre of the bin, mean value) for each bin with enough pairs, ascending.

    Args:
        hardness: (P,) values to bin; bin n covers n * width up to (n + 1) * width.
        values: (P,) values to average.
        width: width of a bin.
        min_pairs: bins with fewer pairs are omitted.
    """
    bins, codes, counts = np.unique(
        np.floor(hardness / width).astype(np.int64), return_inverse=True, return_counts=True
    )
    means = np.bincount(codes, weights=values, minlength=len(bins)) / np.maximum(counts, 1)
    return [
        (round((int(number) + 0.5) * width, 6), float(mean))
        for number, mean, count in zip(bins, means, counts, strict=True)
        if count >= min_pairs
    ]


MAX_BATCHES = 20
"""A few thousand images: enough for stable means, in a few seconds."""


@dataclass
class _Pairs:
    """Hardness and gradient magnitude of all positive or all negative pairs, by batch."""

    hardness: list[Tensor] = field(default_factory=list)
    sizes: list[Tensor] = field(default_factory=list)

    def add(self, hardness: Tensor, gradients: Tensor) -> None:
        self.hardness.append(hardness)
        self.sizes.append(gradients.abs())

    def curve(self) -> Curve:
        """Returns the mean magnitude by hardness relative to the overall mean; empty if it is 0."""
        hardness, sizes = (_to_numpy(parts) for parts in (self.hardness, self.sizes))
        mean = float(sizes.mean()) if len(sizes) else 0.0
        return average_by_bin(hardness, sizes / mean) if mean > 0 else []


def measure_gradients(winners: Sequence[WinnerFolder]) -> Measured:
    """Returns `gradient.positive` and `gradient.negative` over hardness, by arm and seed.

    Arms whose loss has no proxies are omitted.
    """
    measured = Measured()
    for winner in winners:
        checkpoint = winner.load()
        curves = gradient_curves(checkpoint, open_development(checkpoint.config.data))
        for name, curve in curves.items():
            measured.add_curve(name, winner.arm, winner.seed, curve)
    return measured


def gradient_curves(
    checkpoint: Checkpoint, data: DevelopmentData, *, max_batches: int = MAX_BATCHES
) -> dict[str, Curve]:
    """Returns the relative gradient magnitude by hardness, for positive and negative pairs.

    s is the cosine of an image with a proxy. |dL/ds| is computed for every such pair of the batches
    that training would draw next, with the weights and proxies of the last epoch. A pair of one
    class is positive, with hardness 1 - s; other pairs are negative, with hardness s. Magnitudes
    are divided by their mean over all positive or all negative pairs.

    Args:
        checkpoint: the trained model with its loss.
        data: the data of its training.
        max_batches: most batches; at most an epoch.
    """
    positive, negative = _Pairs(), _Pairs()
    with limited_threads(checkpoint.config.training.cpu_threads):
        state = build_state(checkpoint.config, data)
        if not isinstance(state.loss, ProxyLoss):
            return {}
        restore_state(state, checkpoint)
        for embeddings, labels in _embed_batches(state, max_batches):
            similarities = cosine_similarities(embeddings, state.loss.proxies.detach())
            gradients = similarity_gradients(state.loss, similarities, labels)
            is_own = torch.zeros_like(similarities, dtype=torch.bool)
            is_own.scatter_(1, labels.unsqueeze(1), True)
            positive.add(1 - similarities[is_own], gradients[is_own])
            negative.add(similarities[~is_own], gradients[~is_own])
    return {"gradient.positive": positive.curve(), "gradient.negative": negative.curve()}


@torch.no_grad()
def _embed_batches(state: TrialState, max_batches: int) -> list[tuple[Tensor, Tensor]]:
    """Embeds in training mode, so that batch statistics are those of the gradients."""
    state.model.set_training(True, freeze_batch_norm=state.config.training.freeze_batch_norm)
    return [
        (
            state.network(inputs.to(state.device)).float(),
            torch.from_numpy(state.targets.classes[batch.indices]).to(state.device),
        )
        for batch, inputs in islice(training_batches(state), max_batches)
    ]


def _to_numpy(parts: list[Tensor]) -> DoubleArray:
    return torch.cat(parts).cpu().numpy().astype(np.float64) if parts else np.empty(0)
