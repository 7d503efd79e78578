"""Cross-batch memory (Wang et al., 2020): past embeddings as further pairs of a pair loss."""

# B = batch, D = embedding dim, F = stored embeddings, C = B + F: the batch first, then the memory

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dml_core.config.losses import MemoryLossBase
from dml_core.losses.base import MetricLoss, at_least_float32
from dml_core.losses.distances import (
    dot_products,
    pair_masks,
    self_products,
    sphere_distances,
    unit_vectors,
)


class EmbeddingMemory(nn.Module):
    """The last `size` embeddings with their labels; the oldest are replaced first.

    Its buffers are part of the loss's `state_dict`, so a checkpoint restores it bit for bit. They
    grow with the first batches and take the sizes of a loaded state.
    """

    embeddings: Tensor
    """(F, D) of unit length, F at most `size`."""
    squared_lengths: Tensor
    """(F,) 0 for a zero embedding."""
    labels: Tensor
    """(F,) class indices."""
    next_row: Tensor
    """() the row that the next embedding replaces, once the memory is full."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("embeddings", torch.empty(0, 0))
        self.register_buffer("squared_lengths", torch.empty(0))
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("next_row", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def add(self, unit: Tensor, labels: Tensor) -> None:
        """Stores (B, D) embeddings of unit length; of a larger batch, its last `size`."""
        unit, labels = unit.detach()[-self.size :], labels[-self.size :]
        lengths = unit.square().sum(dim=1)
        num_new = min(self.size - len(self.labels), len(labels))
        if num_new:
            kept = self.embeddings.to(unit) if len(self.labels) else unit[:0]
            self.embeddings = torch.cat([kept, unit[:num_new]])
            self.squared_lengths = torch.cat([self.squared_lengths.to(unit), lengths[:num_new]])
            self.labels = torch.cat([self.labels.to(labels), labels[:num_new]])
        num_replaced = len(labels) - num_new
        if num_replaced:
            offsets = torch.arange(num_replaced, device=labels.device)
            rows = (self.next_row.to(labels.device) + offsets) % self.size
            self.embeddings[rows] = unit[num_new:].to(self.embeddings.dtype)
            self.squared_lengths[rows] = lengths[num_new:].to(self.squared_lengths.dtype)
            self.labels[rows] = labels[num_new:]
            self.next_row = (self.next_row + num_replaced) % self.size

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, buffer in list(self.named_buffers()):
            stored = state_dict.get(prefix + name)
            if isinstance(stored, Tensor):
                setattr(self, name, torch.empty_like(stored, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Pairs(NamedTuple):
    """The images of a batch against those of the batch and the memory."""

    cosines: Tensor
    """(B, C), with a gradient for the batch."""
    positives: Tensor
    """(B, C) same class, without each image itself."""
    negatives: Tensor
    """(B, C) different classes."""
    squared_lengths: Tensor | None = None
    """(F,) of the memory's embeddings; None without a memory."""

    def distances(self) -> Tensor:
        """Returns the (B, C) distances on the unit sphere."""
        return sphere_distances(self.cosines, self.squared_lengths)


class MemoryLoss(MetricLoss):
    """A pair loss whose anchors are the batch, and whose pairs include the memory's embeddings.

    Computing the loss does not change the memory; `remember` does. Past embeddings are constants:
    no gradient flows to them.
    """

    config: MemoryLossBase

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        size = self.config.memory.size
        self.memory = EmbeddingMemory(size) if size else None
        self.is_memory_used = self.config.memory.start_epoch == 0

    def start_epoch(self, epoch: int) -> None:
        """Uses the memory from `memory.start_epoch` on; epochs count from 0."""
        self.is_memory_used = epoch >= self.config.memory.start_epoch

    def remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Adds a batch to the memory, after its gradients were computed."""
        if self.memory is not None:
            self.memory.add(unit_vectors(at_least_float32(embeddings.detach())), labels)

    def compare(self, embeddings: Tensor, labels: Tensor) -> Pairs:
        """Returns all pairs of an image of the batch with one of the batch or the memory."""
        unit = unit_vectors(at_least_float32(embeddings))
        products = self_products(unit)
        memory = self.memory if self.is_memory_used else None
        if memory is None or not len(memory.labels):
            return Pairs(products, *pair_masks(labels))
        stored, lengths = memory.embeddings.to(unit), memory.squared_lengths.to(unit)
        if stored.shape[1] > unit.shape[1]:
            # The memory holds whole embeddings; a prefix of the batch meets their prefixes.
            stored = unit_vectors(stored[:, : unit.shape[1]])
            lengths = stored.square().sum(dim=1)
        return Pairs(
            torch.cat([products, dot_products(unit, stored)], dim=1),
            *pair_masks(labels, memory.labels.to(labels.device)),
            squared_lengths=lengths,
        )
