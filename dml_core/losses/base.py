"""The base class of losses."""

# B = batch, C = classes, D = embedding dim, L = label columns

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from dml_core.config.arguments import read_arguments, takes_fields_of
from dml_core.config.losses import LossBase
from dml_core.config.section import Section


class LossSizes(Section):
    """The sizes of a loss that has parameters."""

    num_classes: int = Field(ge=1)
    """Number of training classes; labels are from 0 to num_classes - 1."""
    embedding_dim: int = Field(ge=1)
    """Length of an embedding."""


class MetricLoss(nn.Module, ABC):
    """A loss over a batch of embeddings.

    The constructor takes the fields of `config_class` as keyword arguments, and those of LossSizes
    if `takes_sizes`. Calling the loss returns a scalar and stores intermediate results in
    `diagnostics` as detached tensors by name. Losses compute in float32 or better for any dtype of
    the embeddings, so that half precision stays finite.
    """

    config_class: ClassVar[type[LossBase]]
    """Names, defaults and ranges of the constructor's arguments."""
    takes_sizes: ClassVar[bool] = False
    """Whether the constructor also takes num_classes and embedding_dim."""
    uses_continuous_labels = False
    """Whether labels are (B, L) floats instead of (B,) class indices."""
    cuts_prefixes: ClassVar[bool] = False
    """Whether `compute` sums over the prefixes itself, because its parameters are cut too."""

    config: LossBase
    """The arguments."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if hasattr(cls, "config_class"):
            takes_fields_of(*cls._list_sections())(cls)

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        found = read_arguments(type(self), *self._list_sections(), given=arguments)
        self.config = found[self.config_class]
        self.sizes: LossSizes | None = found.get(LossSizes)
        self.diagnostics: dict[str, Tensor] = {}
        if self.sizes is not None:
            self._check_lengths(self.sizes.embedding_dim)

    @classmethod
    def _list_sections(cls) -> list[type[Section]]:
        return [LossSizes, cls.config_class] if cls.takes_sizes else [cls.config_class]

    def extra_repr(self) -> str:
        """Returns the arguments, for `print(loss)`."""
        values = [*(self.sizes or ()), *self.config]
        return ", ".join(f"{name}={value!r}" for name, value in values if name != "name")

    def forward(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None = None) -> Tensor:
        """Returns the scalar loss; with `matryoshka`, the sum of the losses of each prefix.

        The diagnostics are those of the whole embedding, which is the last prefix.

        Args:
            embeddings: (B, D), not necessarily of unit length.
            labels: (B,) int64 class indices below num_classes, or (B, L) continuous labels.
            anchors: (A,) positions of the anchors in the batch, for losses that use them.

        Raises:
            ValueError: for shapes or labels that do not fit.
        """
        self.check_batch(embeddings, labels)
        if self.cuts_prefixes:
            return self.compute(embeddings, labels, anchors)
        return add_up(self.compute(part, labels, anchors) for part in self.prefixes(embeddings))

    def prefixes(self, vectors: Tensor) -> list[Tensor]:
        """Returns the (N, d) prefixes of (N, D) vectors, the whole vectors last."""
        return [vectors[:, :length] for length in self.config.matryoshka[:-1]] + [vectors]

    def pick_instance(self, embeddings: Tensor) -> nn.Module:
        """Returns the module of a foreign loss for prefixes of this length.

        Such a loss has a module `loss` for whole embeddings, and others in `shorter` by length.
        """
        length, shorter = embeddings.shape[1], self.config.matryoshka[:-1]
        return self.get_submodule(f"shorter.{length}" if length in shorter else "loss")

    @abstractmethod
    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the scalar loss of a checked batch."""

    def start_epoch(self, epoch: int) -> None:
        """Prepares for an epoch, counted from 0; does nothing by default."""

    def remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Keeps a batch for later ones, after its gradients; does nothing by default."""

    def check_batch(self, embeddings: Tensor, labels: Tensor) -> None:
        """Raises ValueError unless embeddings are (B, D) and labels fit them."""
        name, found = type(self).__name__, f"{tuple(labels.shape)} {labels.dtype}"
        if embeddings.ndim != 2:
            raise ValueError(
                f"embeddings of {name} must be (B, D), one row for each image. "
                f"Got {tuple(embeddings.shape)}."
            )
        if self.uses_continuous_labels:
            if labels.ndim != 2 or len(labels) != len(embeddings):
                raise ValueError(
                    f"labels of {name} must be ({len(embeddings)}, L), a row of continuous labels "
                    f"for each embedding. Got {found}. One column is labels.unsqueeze(1)."
                )
        elif labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:
            raise ValueError(
                f"labels of {name} must be ({embeddings.shape[0]},) int64, one class for each "
                f"embedding. Got {found}."
            )
        self._check_lengths(embeddings.shape[1])

    def _check_lengths(self, embedding_dim: int) -> None:
        lengths = self.config.matryoshka
        if lengths and lengths[-1] != embedding_dim:
            raise ValueError(
                f"matryoshka of {type(self).__name__} must end with {embedding_dim}, the length of "
                f"an embedding, or the rest of it would not be trained. Got {list(lengths)}."
            )


def add_up(losses: Iterable[Tensor]) -> Tensor:
    """Returns the sum of one or more losses; a single one is returned unchanged."""
    return reduce(add, losses)


def at_least_float32(embeddings: Tensor) -> Tensor:
    """Returns the embeddings in float32, or unchanged if they are float64."""
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def zero_loss(embeddings: Tensor) -> Tensor:
    """Returns zero with a graph, for batches without a valid pair."""
    return (embeddings * 0).sum()
