"""What every proxy loss is: a learned vector for each class, to which images are compared."""

# B = batch, C = classes, D = embedding dim, K = proxies that take part

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from dml_core.config.losses import ProxyLossBase
from dml_core.losses.base import MetricLoss, zero_loss
from dml_core.losses.proxy_logits import ProxyLogits, compare_with_proxies
from dml_core.losses.proxy_subset import draw_proxy_subset


class ProxyLoss(MetricLoss):
    """A loss between images and one proxy a class, both taken on the unit sphere.

    With `proxy_ratio` below 1, each call compares the batch with the proxies of its own classes
    and of others drawn at random, ceil(proxy_ratio * C) in total; a call then costs what the
    subset costs. With 1 nothing is drawn or gathered.

    Diagnostics: `positive_similarity` and `negative_similarity` are the mean cosines of images
    with their own and with the other proxies; `active_fraction` is told by each loss.
    """

    sum_over = "proxies"
    """What the sums of exponentials run over: `proxies` (for each image) or `images`."""

    def __init__(self, config: ProxyLossBase, *, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        for name, number in (("num_classes", num_classes), ("embedding_dim", embedding_dim)):
            if number < 1:
                raise ValueError(f"{name} of a proxy loss must be at least 1. Got {number}.")
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_dim))
        self.num_participating = math.ceil(config.proxy_ratio * num_classes)
        self.generator = torch.Generator().manual_seed(0)
        self.sparse_gradient = False
        """Whether a subset's gradient holds its rows alone, for an optimiser that knows how."""
        with torch.no_grad():
            self.initialize_proxies()

    @abstractmethod
    def initialize_proxies(self) -> None:
        """Fills `self.proxies` with their values before training."""

    @property
    @abstractmethod
    def logit_scale(self) -> float:
        """The factor that makes a logit of a cosine."""

    @abstractmethod
    def reduce_logits(self, logits: ProxyLogits, targets: Tensor, *, num_proxies: int) -> Tensor:
        """Returns the scalar loss and sets `active_fraction`.

        Args:
            logits: of the batch with the proxies that take part.
            targets: (B,) position of each image's proxy among those.
            num_proxies: how many take part; at least 1.
        """

    @property
    def draws_subset(self) -> bool:
        """Whether only a part of the proxies takes part in a step."""
        return self.num_participating < self.proxies.shape[0]

    def reseed(self, generator: torch.Generator) -> None:
        """Takes the CPU stream that the next subsets of classes are drawn from."""
        self.generator = generator

    def forward(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None = None) -> Tensor:
        """Returns the scalar loss; zero, with a graph, for a batch without images."""
        self._check(embeddings, labels)
        if labels.numel() == 0:
            return zero_loss(embeddings)
        proxies, targets = self._participants(labels)
        scale = self.logit_scale
        logits = compare_with_proxies(embeddings, proxies, targets, scale=scale, over=self.sum_over)
        self.diagnostics = {
            "positive_similarity": logits.target.detach().mean() / scale,
            "negative_similarity": logits.mean_other / scale,
        }
        return self.reduce_logits(logits, targets, num_proxies=proxies.shape[0])

    def _participants(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the (K, D) proxies of this step and each image's row among them."""
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

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        num_classes, dim = self.proxies.shape
        if embeddings.ndim != 2 or embeddings.shape[1] != dim:
            raise ValueError(
                f"embeddings of {type(self).__name__} must be (B, {dim}), the size of its proxies. "
                f"Got {tuple(embeddings.shape)}. Set embedding_dim to the model's."
            )
        if labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:
            raise ValueError(
                f"labels of {type(self).__name__} must be ({embeddings.shape[0]},) int64, one "
                f"class for each embedding. Got {tuple(labels.shape)} {labels.dtype}."
            )
        # On a GPU the look would wait for the device; the gather there stops on bad indices.
        if labels.device.type != "cpu" or labels.numel() == 0:
            return
        low, high = (int(bound) for bound in torch.aminmax(labels))
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"labels of {type(self).__name__} must be from 0 to {num_classes - 1}, since it "
                f"has {num_classes} proxies. Got {low if low < 0 else high}. "
                "Set num_classes to that of the training split, numbered from 0."
            )
