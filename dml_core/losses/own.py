"""Losses of the project folder, by the name `python:my_package.my_module:MyLoss`."""

# B = batch, D = embedding dim

from typing import Any

import torch
from torch import Tensor, nn

from dml_core.config.losses import OwnLossConfig
from dml_core.config.problems import ConfigError, suggest
from dml_core.losses.base import MetricLoss, at_least_float32
from dml_core.own_code import OwnCodeError, call_with_options, load_object

_CLASSES, _SAMPLES = 4, 4


class OwnLoss(MetricLoss):
    """A loss of the project folder: a torch module with `forward(embeddings, labels)`.

    The constructor gets `loss.options` as keyword arguments, and num_classes and embedding_dim if
    it takes them; with `matryoshka`, each length has its own instance. Its parameters are trained
    as proxies are. Embeddings are (B, D) in float32 or better, of unit length unless
    model.normalize is no or they are prefixes; labels are (B,) int64.
    """

    config_class = OwnLossConfig
    takes_sizes = True
    config: OwnLossConfig

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        sizes = self.sizes
        assert sizes is not None
        self.loss = self._build(sizes.embedding_dim)
        self.shorter = nn.ModuleDict(
            {str(length): self._build(length) for length in self.config.matryoshka[:-1]}
        )

    def _build(self, embedding_dim: int) -> nn.Module:
        """Returns an instance of the class for embeddings or prefixes of this length."""
        assert self.sizes is not None
        name = self.config.name
        try:
            loss = call_with_options(
                load_object(name),
                name=name,
                options=self.config.options,
                given={**dict(self.sizes), "embedding_dim": embedding_dim},
                key="loss.options",
                suggest=suggest,
            )
        except OwnCodeError as error:
            raise ConfigError("loss", str(error).splitlines()) from error
        if not isinstance(loss, nn.Module):
            problem = f"loss.name={name} must be a torch.nn.Module. Got {type(loss).__name__}."
            raise ConfigError("loss", [problem])
        return loss

    def compute(self, embeddings: Tensor, labels: Tensor, anchors: Tensor | None) -> Tensor:
        """Returns the loss of (B, D) embeddings and (B,) labels.

        Raises:
            ValueError: when it is no scalar tensor.
        """
        loss = self.pick_instance(embeddings)
        value = loss(at_least_float32(embeddings), labels)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
            raise ValueError(
                f"{self.config.name} must return a tensor with one number. Got {found}. "
                "Return its mean or sum."
            )
        found_diagnostics = getattr(loss, "diagnostics", {})
        self.diagnostics = {
            name: number.detach()
            for name, number in dict(found_diagnostics).items()
            if isinstance(number, Tensor)
        }
        return value.reshape(())


def find_loss_problems(loss: MetricLoss, *, num_classes: int, embedding_dim: int) -> list[str]:
    """Tries a loss on random batches; returns why it cannot train a network, one sentence each.

    Args:
        loss: a new loss, which is not used for anything else.
        num_classes: as the loss was built with.
        embedding_dim: as the loss was built with.
    """
    stream = torch.Generator().manual_seed(0)
    name = getattr(loss.config, "name", type(loss).__name__)
    labels = torch.arange(_CLASSES * _SAMPLES) % min(_CLASSES, num_classes)
    drawn = torch.randn(len(labels), embedding_dim, generator=stream)
    embeddings = nn.functional.normalize(drawn, dim=1).requires_grad_()
    where = f"on a random batch of {len(labels)} unit vectors of {_CLASSES} classes"
    try:
        value = loss(embeddings, labels)
    except Exception as error:
        return [f"loss.name={name} fails {where}: {type(error).__name__}: {str(error)[:300]}"]
    if not value.isfinite():
        return [f"loss.name={name} must be finite. It is {value.item()} {where}."]
    if not value.requires_grad:
        return [_say_no_gradient(name, "its value has no graph; do not detach the embeddings")]
    value.backward()
    gradient = embeddings.grad
    if gradient is None or not gradient.any():
        return [_say_no_gradient(name, f"the gradient of the embeddings is zero {where}")]
    learned = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    if not all(each.isfinite().all() for each in [gradient, *learned]):
        return [f"loss.name={name} must have finite gradients. Got nan or infinity {where}."]
    return []


def _say_no_gradient(name: str, reason: str) -> str:
    return f"loss.name={name} must have a gradient, or the network learns nothing: {reason}."
