"""Forward and backward of each loss against pytorch-metric-learning and against bare products."""

import copy
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_metric_learning import losses, miners, reducers
from torch import Tensor, nn

from benchmarks.rows import Row, make_row, milliseconds, quartiles
from benchmarks.settings import Settings
from benchmarks.timing import time_in_turns
from dml_core.losses.memory import MemoryLoss
from dml_core.losses.proxies import ProxyLoss
from dml_core.losses.registry import build_loss
from dml_core.training.determinism import limited_threads

GROUP = "losses"
DIM, BATCH, SMALL_BATCH, SAMPLES, ROUNDS = 512, 180, 40, 4, 7
MEMORY = 4096
"""About as many past embeddings in the rows with a memory."""
PREFIXES = (32, 64, 128, DIM)
"""Lengths in the rows with matryoshka."""
CLASSES, FEW_CLASSES = (100, 11_318), (50,)
TOLERANCE = 1e-9
"""Relative to the largest entry; both compute in float64, in different order."""
MEMORY_TOLERANCE = 1e-7
"""Stored embeddings are in single precision: ours of unit length, theirs not."""
ARCFACE_DEGREES = 28.6

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class Pair:
    """The same loss in both libraries."""

    name: str
    ours: nn.Module
    theirs: LossFunction
    their_proxies: nn.Parameter | None = None
    is_transposed: bool = False
    """Whether their proxies are columns."""
    batches: tuple[Tensor, ...] = ()
    """Embeddings of the timed steps in turn, for a loss with a memory; else always the same."""
    against: str = "pytorch-metric-learning"
    target: float = 0.9


def run_losses(settings: Settings) -> list[Row]:
    """Returns a row for each loss and number of classes, and one for their mean."""
    rows: list[Row] = []
    with limited_threads(1):
        for num_classes in FEW_CLASSES if settings.short else CLASSES:
            size = SMALL_BATCH if settings.short else BATCH
            embeddings, labels = _draw_batch(num_classes, size)
            pairs = _pairs(num_classes) + _prefix_pairs(num_classes) + [_own_pair(num_classes)]
            for pair in [*pairs, *_memory_pairs(num_classes, embeddings, labels)]:
                rows += _measure(pair, embeddings, labels, num_classes, settings)
    compared = [row.ratio for row in rows if row.target < 1]
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in compared))
    return [*rows, _mean_row(mean, compared)]


def _measure(
    pair: Pair, embeddings: Tensor, labels: Tensor, num_classes: int, settings: Settings
) -> list[Row]:
    difference = _difference(pair, embeddings, labels)
    own, other = (itertools.cycle(pair.batches or (embeddings,)) for _ in range(2))
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: _step(pair.ours, list(pair.ours.parameters()), next(own), labels),
        "theirs": lambda: _step(pair.theirs, _listed(pair.their_proxies), next(other), labels),
    }
    if isinstance(pair.ours, ProxyLoss):
        proxies = pair.ours.proxies.detach()
        runs["products"] = lambda: _multiply(embeddings, proxies)
        runs["node"] = lambda: _differentiate(_ThreeProducts.apply, embeddings, proxies)
        runs["cosines"] = lambda: _differentiate(_compare_only, embeddings, proxies)
    seconds = time_in_turns(runs, settings, rounds=ROUNDS)
    name = f"{pair.name}, {num_classes:,} classes"
    compared = make_row(
        GROUP,
        name,
        ours=milliseconds(seconds["ours"]),
        theirs=milliseconds(seconds["theirs"]),
        target=pair.target,
        against=pair.against,
        difference=difference,
        tolerance=MEMORY_TOLERANCE if pair.batches else TOLERANCE,
    )
    if "products" not in seconds:
        return [compared]
    bare = make_row(
        GROUP,
        name,
        ours=milliseconds(seconds["ours"]),
        theirs=milliseconds(seconds["products"]),
        target=2.0,
        against="two bare products",
        note=f"three products in a node of autograd alone take {_share(seconds, 'node'):.2f}, "
        f"cosines and their gradients by torch {_share(seconds, 'cosines'):.2f}",
    )
    return [compared, bare]


def _mean_row(mean: float, ratios: list[float]) -> Row:
    return Row(
        group=GROUP,
        name="geometric mean of all losses",
        against="pytorch-metric-learning",
        unit="x",
        ours=mean,
        theirs=None,
        ratio=mean,
        spread=quartiles(ratios),
        target=0.4,
        direction="at most",
        note="the spread is over the losses",
    )


def _step(
    loss: LossFunction, parameters: list[nn.Parameter], embeddings: Tensor, labels: Tensor
) -> list[Tensor]:
    """Returns the loss and the gradients of embeddings and proxies, computed as in a step."""
    for parameter in parameters:
        parameter.grad = None
    leaf = embeddings.detach().requires_grad_()
    value = loss(leaf, labels)
    value.backward()
    if isinstance(loss, MemoryLoss):
        loss.remember(leaf, labels)
    gradients = [leaf.grad, *(parameter.grad for parameter in parameters)]
    return [value.detach(), *(gradient for gradient in gradients if gradient is not None)]


def _multiply(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Multiplies a batch with proxies, and a gradient back."""
    return (embeddings @ proxies.t()).t() @ embeddings


class _ThreeProducts(torch.autograd.Function):
    """The matrix products that every proxy loss needs, and nothing else."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor) -> Tensor:
        ctx.save_for_backward(embeddings, proxies)
        return embeddings @ proxies.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        embeddings, proxies = ctx.saved_tensors
        return gradient @ proxies, gradient.t() @ embeddings


def _compare_only(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Cosines as a script would write them."""
    points, centers = (nn.functional.normalize(vectors, dim=1) for vectors in (embeddings, proxies))
    return points @ centers.t()


def _differentiate(compare: LossFunction, embeddings: Tensor, proxies: Tensor) -> None:
    leaves = [tensor.detach().requires_grad_() for tensor in (embeddings, proxies)]
    compared = compare(*leaves)
    # Any gradient of that shape serves.
    compared.backward(compared.detach())


def _share(seconds: dict[str, list[float]], name: str) -> float:
    """Returns the time of a competitor divided by that of the bare products."""
    pairs = zip(seconds[name], seconds["products"], strict=True)
    return statistics.median(own / products for own, products in pairs)


def _difference(pair: Pair, embeddings: Tensor, labels: Tensor) -> float:
    """Returns the largest difference of value and gradients, relative to the largest entry.

    Computed in double precision: in single precision rounding can change which triplets are mined.
    """
    double = embeddings.double()
    own_loss = copy.deepcopy(pair.ours).double()
    ours = _step(own_loss, list(own_loss.parameters()), double, labels)
    # Theirs converts itself to the precision of the embeddings, and back at the next call.
    theirs = _step(pair.theirs, _listed(pair.their_proxies), double, labels)
    if pair.batches:
        # The batch is in their memory, without gradient: the value is equal, and their gradient
        # lacks the other end of each pair of the batch.
        ours, theirs = ours[:1], theirs[:1]
    if pair.is_transposed:
        theirs[-1] = theirs[-1].t()
    return max(
        float((own - other).abs().max() / other.abs().max())
        for own, other in zip(ours, theirs, strict=True)
    )


def _listed(parameter: nn.Parameter | None) -> list[nn.Parameter]:
    return [] if parameter is None else [parameter]


def _draw_batch(num_classes: int, size: int) -> tuple[Tensor, Tensor]:
    """Returns unit vectors, slightly closer within a class, so that every miner finds pairs."""
    chance = torch.Generator().manual_seed(0)
    chosen = torch.randperm(num_classes, generator=chance)[: size // SAMPLES]
    centers = torch.randn(len(chosen), DIM, generator=chance).repeat_interleave(SAMPLES, dim=0)
    points = centers + 2 * torch.randn(size, DIM, generator=chance)
    return nn.functional.normalize(points, dim=1), chosen.repeat_interleave(SAMPLES)


def _pairs(num_classes: int) -> list[Pair]:
    torch.manual_seed(0)
    size: dict[str, Any] = {"num_classes": num_classes, "embedding_size": DIM}
    margin = {"margin": math.radians(ARCFACE_DEGREES), "scale": 64.0}
    # Their Proxy-NCA has the positive proxy in the denominator.
    nca = {"scale": 8.0, "target_in_denominator": True}
    return [
        _proxy_pair("proxy_anchor", losses.ProxyAnchorLoss(**size), size),
        _proxy_pair("proxy_nca", losses.ProxyNCALoss(softmax_scale=8, **size), size, **nca),
        _proxy_pair("norm_softmax", losses.NormalizedSoftmaxLoss(**size), size),
        _proxy_pair("arcface", losses.ArcFaceLoss(margin=ARCFACE_DEGREES, **size), size, **margin),
        _pair("contrastive", losses.ContrastiveLoss(neg_margin=1.4), size, negative_margin=1.4),
        _pair("triplet", _semi_hard_triplet(), size),
        _pair("n_pair", losses.NPairsLoss(), size, scale=1.0),
        _pair("lifted_structure", losses.LiftedStructureLoss(), size),
        _pair("multi_similarity", losses.MultiSimilarityLoss(), size, mining_epsilon=None),
    ]


def _plain_pair_losses() -> list[tuple[str, nn.Module, dict[str, Any]]]:
    """Returns losses over pairs, theirs and the knobs of ours."""
    return [
        ("contrastive", losses.ContrastiveLoss(neg_margin=1.4), {"negative_margin": 1.4}),
        ("multi_similarity", losses.MultiSimilarityLoss(), {"mining_epsilon": None}),
    ]


def _prefix_pairs(num_classes: int) -> list[Pair]:
    """Returns losses summed over prefixes of the embeddings, against a loop over theirs."""
    size: dict[str, Any] = {"num_classes": num_classes, "embedding_size": DIM}
    pairs = []
    for name, inner, knobs in _plain_pair_losses():
        ours = _pair(name, inner, size, matryoshka=list(PREFIXES), **knobs).ours
        pairs.append(Pair(f"{name}, matryoshka of {len(PREFIXES)}", ours, _SumOverPrefixes(inner)))
    return pairs


class _SumOverPrefixes(nn.Module):
    """Adds up a loss of the prefixes of the embeddings, as a script would."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        values = [self.inner(embeddings[:, :length], labels) for length in PREFIXES]
        return torch.stack(values).sum()


class OwnLoss(nn.Module):
    """A short loss as a user would write it: cross-entropy of the similarities to class means."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean over images."""
        _, targets, counts = labels.unique(return_inverse=True, return_counts=True)
        sums = embeddings.new_zeros(len(counts), embeddings.shape[1])
        means = sums.index_add(0, targets, embeddings) / counts.unsqueeze(1)
        return nn.functional.cross_entropy(embeddings @ means.t() / 0.1, targets)


def _own_pair(num_classes: int) -> Pair:
    """Returns a loss by its `python:` name, against calling it without the checks."""
    name = f"python:{__name__}:{OwnLoss.__name__}"
    ours = build_loss(name, num_classes=num_classes, embedding_dim=DIM)
    return Pair("own loss", ours, OwnLoss(), against="the module itself", target=1.1)


def _memory_pairs(num_classes: int, embeddings: Tensor, labels: Tensor) -> list[Pair]:
    """Returns pair losses with a full memory, whose steps compare with it and store the batch."""
    size: dict[str, Any] = {"num_classes": num_classes, "embedding_size": DIM}
    count = MEMORY // len(labels)
    chance = torch.Generator().manual_seed(1)
    # Noise of about the length of an embedding.
    noise = torch.randn(count, *embeddings.shape, generator=chance) / math.sqrt(DIM)
    batches = tuple(nn.functional.normalize(embeddings + each, dim=1) for each in noise)
    past, past_labels = torch.cat(batches), labels.repeat(count)
    pairs = []
    # Their triplet loss lists 60 million triplets here, which takes minutes.
    for name, inner, knobs in _plain_pair_losses():
        ours = _pair(name, inner, size, memory={"size": len(past)}, **knobs).ours
        assert isinstance(ours, MemoryLoss)
        ours.remember(past, past_labels)
        # Theirs has a place for the batch itself.
        theirs = losses.CrossBatchMemory(inner, DIM, len(past) + len(labels))
        theirs.add_to_memory(past, past_labels, len(past))
        pairs.append(Pair(f"{name}, memory of {len(past):,}", ours, theirs, batches=batches))
    return pairs


def _semi_hard_triplet() -> LossFunction:
    miner = miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard")
    triplet = losses.TripletMarginLoss(margin=0.2, reducer=reducers.MeanReducer())
    return lambda embeddings, labels: triplet(embeddings, labels, miner(embeddings, labels))


def _pair(name: str, theirs: LossFunction, size: dict[str, Any], **knobs: Any) -> Pair:
    ours = build_loss(
        name, num_classes=size["num_classes"], embedding_dim=size["embedding_size"], **knobs
    )
    return Pair(name, ours, theirs)


def _proxy_pair(name: str, theirs: nn.Module, size: dict[str, Any], **knobs: Any) -> Pair:
    """Returns the pair with the same proxies on both sides."""
    ours = _pair(name, theirs, size, **knobs).ours
    is_transposed = hasattr(theirs, "W")
    proxies: nn.Parameter = theirs.W if is_transposed else theirs.proxies
    assert isinstance(ours, ProxyLoss)
    with torch.no_grad():
        proxies.copy_(ours.proxies.t() if is_transposed else ours.proxies)
    return Pair(name, ours, theirs, proxies, is_transposed)
