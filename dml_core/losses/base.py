"""What every loss is: a module from embeddings and labels to one number."""

# B = batch, C = classes, D = embedding dim

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class MetricLoss(nn.Module, ABC):
    """A loss over a batch of embeddings.

    `forward` returns a scalar and leaves what it learned on the way in `diagnostics`: detached
    tensors by name, so that looking at them costs no second pass. Computation is in float32 at
    least, whatever the embeddings' dtype, so that half precision stays finite.
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
            anchors: (A,) positions of the batch's anchors, for losses that ask for them.
        """


def at_least_float32(embeddings: Tensor) -> Tensor:
    """Returns the embeddings in float32, or in float64 where they have that already."""
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def zero_loss(embeddings: Tensor) -> Tensor:
    """Returns a zero that still has a graph, for batches without a single valid pair."""
    return (embeddings * 0).sum()
