"""The base class of losses."""

# B = batch, C = classes, D = embedding dim

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class MetricLoss(nn.Module, ABC):
    """A loss over a batch of embeddings.

    `forward` returns a scalar and stores intermediate results in `diagnostics` as detached tensors
    by name. Losses compute in float32 or better for any dtype of the embeddings, so that half
    precision stays finite.
    """

    uses_continuous_labels = False
    """Whether labels are (B, L) floats instead of (B,) class indices."""

    def __init__(self) -> None:
        super().__init__()
        self.diagnostics: dict[str, Tensor] = {}

    @abstractmethod
    def forward(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None = None) -> Tensor:
        """Returns the scalar loss.

        Args:
            embeddings: (B, D), not necessarily of unit length.
            labels: (B,) int64 class indices below num_classes, or (B, L) continuous labels.
            anchors: (A,) positions of the anchors in the batch, for losses that use them.
        """


def at_least_float32(embeddings: Tensor) -> Tensor:
    """Returns the embeddings in float32, or unchanged if they are float64."""
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def zero_loss(embeddings: Tensor) -> Tensor:
    """Returns zero with a graph, for batches without a valid pair."""
    return (embeddings * 0).sum()
