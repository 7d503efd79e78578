"""The base class of proxy losses: images are compared with one learned vector per class."""

# B = batch, C = classes, D = embedding dim, K = participating proxies

import math
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dml_core.config.losses import ProxyLossBase
from dml_core.losses.base import MetricLoss, add_up, zero_loss

# Above it, log(1 + e^x) equals x in float64; torch's default of 20 has an error of 2e-9.
LINEAR_ABOVE = 40.0


def log_one_plus_exp(values: Tensor) -> Tensor:
    """Returns log(1 + e^x) of each value: finite for all values, precise near zero."""
    return functional.softplus(values, threshold=LINEAR_ABOVE)


def grouped_log_one_plus_sum_exp(values: Tensor, groups: Tensor, *, num_groups: int) -> Tensor:
    """Returns (G,) log(1 + sum of e^x over the values of each group); 0 for an empty group.

    Args:
        values: (B,).
        groups: (B,) the group of each value, below num_groups.
        num_groups: G.
    """
    # The maximum is a constant of the computation: its derivative cancels. Starting from zeros
    # includes the added 1 = e^0 in the maximum.
    highest = values.new_zeros(num_groups)
    highest = highest.scatter_reduce(0, groups, values.detach(), "amax")
    sums = torch.exp(-highest).index_add(0, groups, torch.exp(values - highest[groups]))
    return sums.log() + highest


class ProxySubset(NamedTuple):
    """The participating classes, and the positions of the batch's classes among them."""

    classes: Tensor
    """(K,) distinct class indices, those of the batch first; both parts ascending."""
    targets: Tensor
    """(B,) position of each image's class in `classes`."""


def draw_proxy_subset(
    labels: Tensor, *, num_classes: int, size: int, generator: torch.Generator
) -> ProxySubset:
    """Returns all classes of the batch, and others drawn uniformly up to `size` in total.

    Every set of other classes of that size is equally likely. Time and memory are proportional to
    the subset, not to num_classes. A batch with more than `size` classes gets exactly its classes.

    Args:
        labels: (B,) class indices below num_classes.
        num_classes: number of all classes.
        size: number of participating classes.
        generator: a CPU generator; the draw does not depend on the device of the labels.
    """
    present, targets = torch.unique(labels, return_inverse=True)
    num_absent = num_classes - present.numel()
    num_drawn = max(0, min(size, num_classes) - present.numel())
    ranks = _draw_distinct(num_absent, num_drawn, generator).to(labels.device)
    # present[k] - k absent classes precede present[k], which gives the shift of each rank.
    gaps = present - torch.arange(present.numel(), device=labels.device)
    absent = ranks + torch.searchsorted(gaps, ranks, right=True)
    return ProxySubset(classes=torch.cat([present, absent]), targets=targets)


def _draw_distinct(bound: int, count: int, generator: torch.Generator) -> Tensor:
    """Returns `count` distinct numbers below `bound`, every set equally likely.

    They ascend, because reading rows in memory order is faster.
    """
    if 4 * count >= bound:
        return torch.randperm(bound, generator=generator)[:count].sort().values
    # Draws with repetition are symmetric in all numbers, so a choice among the distinct ones that
    # ignores their values is uniform. With at most a quarter drawn, repetitions are few.
    numbers = torch.empty(0, dtype=torch.int64)
    while numbers.numel() < count:
        more = torch.randint(bound, (count + count // 4 + 8,), generator=generator)
        numbers = torch.unique(torch.cat([numbers, more]))
    surplus = torch.randperm(numbers.numel(), generator=generator)[count:]
    return numbers[torch.ones_like(numbers, dtype=torch.bool).index_fill_(0, surplus, False)]


# Shorter vectors have no reliable direction: their cosine with everything is zero.
SHORTEST = 1e-12
# Far below every logit, but finite: differences of infinities would give a nan gradient.
MASKED = -1e30


class ProxyLogits(NamedTuple):
    """Reductions of the (B, K) logits, which are scaled cosines."""

    target: Tensor
    """(B,) logit of each image with the proxy of its class."""
    rest: Tensor
    """Log-sum-exp over pairs of different classes: (B,) per image or (K,) per proxy; about -1e30
    without such a pair."""
    mean_other: Tensor
    """() mean logit over pairs of different classes, without gradient; 0 without pairs."""


def compare_with_proxies(
    embeddings: Tensor, proxies: Tensor, targets: Tensor, *, scale: float, over: str
) -> ProxyLogits:
    """Returns the logits scale * cos(x, p), with each image's target logit apart.

    Both sides are normalized here. A zero vector has cosine 0 with everything and gets a zero
    gradient. The computation uses float32 or better; gradients have the dtypes of the inputs,
    clamped to their range.

    Args:
        embeddings: (B, D), B at least 1.
        proxies: (K, D).
        targets: (B,) row of the proxy of each image's class.
        scale: factor on the cosine, above 0.
        over: `proxies` sums, for each image, over the proxies of other classes; `images` sums, for
            each proxy, over the images of other classes.
    """
    axis = {"images": 0, "proxies": 1}[over]
    return ProxyLogits(*_Comparison.apply(embeddings, proxies, targets, scale, axis))


class _Comparison(torch.autograd.Function):
    """An explicit backward, because autograd would store and read many more (B, K) arrays."""

    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, proxies: Tensor, targets: Tensor, scale: float, axis: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.promote_types(embeddings.dtype, proxies.dtype)
        dtype = torch.promote_types(dtype, torch.float32)
        images, rows = embeddings.to(dtype), proxies.to(dtype)
        image_inverse, row_inverse = _inverse_length(images), _inverse_length(rows)
        images = images * image_inverse.unsqueeze(1)
        with _without_autocast(embeddings.device.type):
            logits = images @ rows.t()
        # Scaling the (B, K) products is cheaper than normalizing the (K, D) proxies.
        logits *= scale * row_inverse
        column = targets.unsqueeze(1)
        target = logits.gather(1, column)
        mean_other = (logits.sum() - target.sum()) / max(1, logits.numel() - target.numel())
        logits.scatter_(1, column, MASKED)
        rest = _log_sum_exp(logits, axis)
        logits.scatter_(1, column, target)
        ctx.save_for_backward(embeddings, proxies, images, image_inverse, row_inverse, logits)
        ctx.column, ctx.rest, ctx.scale, ctx.axis = column, rest.detach(), scale, axis
        ctx.mark_non_differentiable(mean_other)
        return target.squeeze(1), rest, mean_other

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, target_gradient: Tensor, rest_gradient: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        embeddings, proxies, images, image_inverse, row_inverse, logits = ctx.saved_tensors
        gradient = (logits - ctx.rest.unsqueeze(ctx.axis)).exp_()
        gradient *= rest_gradient.unsqueeze(ctx.axis)
        # The targets are not part of the sums, so their entries are overwritten.
        gradient.scatter_(1, ctx.column, target_gradient.unsqueeze(1))
        along = gradient * logits
        gradient *= ctx.scale * row_inverse
        for_embeddings = for_proxies = None
        with _without_autocast(embeddings.device.type):
            if ctx.needs_input_grad[0]:
                rows = proxies.to(logits.dtype)
                # With unit length, only the component orthogonal to the vector has an effect.
                across = gradient @ rows
                across.addcmul_(images, along.sum(1, keepdim=True), value=-1)
                across *= image_inverse.unsqueeze(1)
                for_embeddings = _cut(across, embeddings.dtype)
            if ctx.needs_input_grad[1]:
                rows = proxies.to(logits.dtype)
                across = rows * (-row_inverse.square() * along.sum(0)).unsqueeze(1)
                for_proxies = _cut(across.addmm_(gradient.t(), images), proxies.dtype)
        return for_embeddings, for_proxies, None, None, None


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    # Entering autocast costs as much as a small product, so it is skipped if autocast is off.
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _inverse_length(vectors: Tensor) -> Tensor:
    """Returns 1 / length of each row, or 0 for rows without a direction."""
    length = torch.linalg.vector_norm(vectors, dim=1)
    return torch.where(length > SHORTEST, length.reciprocal(), 0.0)


def _log_sum_exp(logits: Tensor, axis: int) -> Tensor:
    highest = logits.amax(axis, keepdim=True)
    return (logits - highest).exp_().sum(axis).log_() + highest.squeeze(axis)


def _cut(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the gradient in another dtype, clamped to its range."""
    if dtype == gradient.dtype:
        return gradient
    bound = torch.finfo(dtype).max
    return gradient.clamp(-bound, bound).to(dtype)


class ProxyLoss(MetricLoss):
    """A loss between images and one proxy per class, both on the unit sphere.

    `generator` is a CPU generator for the initial proxies and the draws of subsets. Without it, the
    proxies come from torch's default generator and the draws from a fixed seed.

    With `proxy_ratio` below 1, each call compares the batch with the proxies of its classes and of
    others drawn at random, ceil(proxy_ratio * C) in total; its cost is proportional to the subset.
    With 1, nothing is drawn or gathered.

    With `matryoshka`, the prefix of a proxy is the proxy of the embedding's prefix. Both are
    normalized after the cut.

    Diagnostics: `positive_similarity` and `negative_similarity` are the mean cosines of images
    with the proxy of their class and with the other proxies; each loss sets `active_fraction`.
    """

    sum_over = "proxies"
    """Axis of the sums of exponentials: `proxies` (per image) or `images` (per proxy)."""

    takes_sizes = True
    cuts_prefixes = True
    config: ProxyLossBase

    def __init__(self, *, generator: torch.Generator | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        assert self.sizes is not None
        self.proxies = nn.Parameter(torch.empty(self.sizes.num_classes, self.sizes.embedding_dim))
        self.num_participating = math.ceil(self.config.proxy_ratio * self.sizes.num_classes)
        self.generator = generator or torch.Generator().manual_seed(0)
        self.sparse_gradient = False
        """Whether the gradient of a subset is sparse, for an optimizer that supports it."""
        with torch.no_grad():
            self.initialize_proxies(generator)

    @abstractmethod
    def initialize_proxies(self, generator: torch.Generator | None = None) -> None:
        """Fills `self.proxies` with their initial values; None draws from torch's default."""

    @property
    @abstractmethod
    def logit_scale(self) -> float:
        """Factor from cosine to logit."""

    @abstractmethod
    def reduce_logits(self, logits: ProxyLogits, targets: Tensor, *, num_proxies: int) -> Tensor:
        """Returns the scalar loss and sets `active_fraction`.

        Args:
            logits: of the batch with the participating proxies.
            targets: (B,) position of each image's proxy among them.
            num_proxies: number of participating proxies; at least 1.
        """

    @property
    def draws_subset(self) -> bool:
        """Whether only a subset of the proxies participates in a step."""
        return self.num_participating < self.proxies.shape[0]

    def reseed(self, generator: torch.Generator) -> None:
        """Sets the CPU generator that draws the next subsets of classes."""
        self.generator = generator

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss; zero, with a graph, for an empty batch."""
        if labels.numel() == 0:
            return zero_loss(embeddings)
        # Drawn once: a proxy takes part with all of its prefixes or with none.
        proxies, targets = self._participants(labels)
        pairs = zip(self.prefixes(embeddings), self.prefixes(proxies), strict=True)
        return add_up(self._compare(images, rows, targets) for images, rows in pairs)

    def _compare(self, embeddings: Tensor, proxies: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of the batch with the participating proxies, of equal length."""
        scale = self.logit_scale
        logits = compare_with_proxies(embeddings, proxies, targets, scale=scale, over=self.sum_over)
        self.diagnostics = {
            "positive_similarity": logits.target.detach().mean() / scale,
            "negative_similarity": logits.mean_other / scale,
        }
        return self.reduce_logits(logits, targets, num_proxies=proxies.shape[0])

    def _participants(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the (K, D) proxies of this step, and the row of each image's proxy."""
        if not self.draws_subset:
            return self.proxies, labels
        subset = draw_proxy_subset(
            labels,
            num_classes=self.proxies.shape[0],
            size=self.num_participating,
            generator=self.generator,
        )
        rows = functional.embedding(subset.classes, self.proxies, sparse=self.sparse_gradient)
        return rows, subset.targets

    def check_batch(self, embeddings: Tensor, labels: Tensor) -> None:
        """Raises ValueError unless embeddings and labels fit each other and the proxies."""
        super().check_batch(embeddings, labels)
        num_classes, dim = self.proxies.shape
        if embeddings.shape[1] != dim:
            raise ValueError(
                f"embeddings of {type(self).__name__} must be (B, {dim}), the size of its proxies. "
                f"Got {tuple(embeddings.shape)}. Set embedding_dim to the model's."
            )
        # On a GPU the check would synchronize; there the gather fails on bad indices.
        if labels.device.type != "cpu" or labels.numel() == 0:
            return
        low, high = (int(bound) for bound in torch.aminmax(labels))
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"labels of {type(self).__name__} must be from 0 to {num_classes - 1}, because it "
                f"has {num_classes} proxies. Got {low if low < 0 else high}. "
                "Set num_classes to that of the training split, numbered from 0."
            )
