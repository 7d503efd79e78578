"""Forward and backward of each loss against pytorch-metric-learning and against bare products."""

import copy
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
from dml_core.losses.proxies import ProxyLoss
from dml_core.losses.registry import build_loss
from dml_core.training.determinism import limited_threads

GROUP = "losses"
DIM, BATCH, SMALL_BATCH, SAMPLES, ROUNDS = 512, 180, 40, 4, 7
CLASSES, FEW_CLASSES = (100, 11_318), (50,)
TOLERANCE = 1e-9
"""Relative to the largest entry; both compute in float64, in different order."""
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


def run_losses(settings: Settings) -> list[Row]:
    """Returns a row for each loss and number of classes, and one for their mean."""
    rows: list[Row] = []
    with limited_threads(1):
        for num_classes in FEW_CLASSES if settings.short else CLASSES:
            size = SMALL_BATCH if settings.short else BATCH
            embeddings, labels = _draw_batch(num_classes, size)
            for pair in _pairs(num_classes):
                rows += _measure(pair, embeddings, labels, num_classes, settings)
    compared = [row.ratio for row in rows if row.target < 1]
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in compared))
    return [*rows, _mean_row(mean, compared)]


def _measure(
    pair: Pair, embeddings: Tensor, labels: Tensor, num_classes: int, settings: Settings
) -> list[Row]:
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: _step(pair.ours, list(pair.ours.parameters()), embeddings, labels),
        "theirs": lambda: _step(pair.theirs, _listed(pair.their_proxies), embeddings, labels),
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
        target=0.9,
        against="pytorch-metric-learning",
        difference=_difference(pair, embeddings, labels),
        tolerance=TOLERANCE,
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
