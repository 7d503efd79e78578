"""Small random batches for the tests of the proxy losses."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from dml_core.losses.proxies import ProxyLoss
from dml_core.losses.registry import build_loss


@dataclass(frozen=True)
class ProxyBatch:
    """Embeddings (B, D), labels (B,) and proxies (C, D) in float64."""

    embeddings: Tensor
    labels: Tensor
    proxies: Tensor

    def as_lists(self) -> tuple[list[list[float]], list[int], list[list[float]]]:
        """The same numbers without torch, for the plain-loop definitions."""
        return self.embeddings.tolist(), self.labels.tolist(), self.proxies.tolist()


def random_batch(seed: int, *, images: int, classes: int, dim: int) -> ProxyBatch:
    """A batch of normally distributed vectors; labels may miss classes."""
    stream = torch.Generator().manual_seed(seed)
    return ProxyBatch(
        embeddings=torch.randn(images, dim, generator=stream, dtype=torch.float64),
        labels=torch.randint(classes, (images,), generator=stream),
        proxies=torch.randn(classes, dim, generator=stream, dtype=torch.float64),
    )


def batches(min_classes: int = 1) -> st.SearchStrategy[ProxyBatch]:
    """Batches of 1 to 9 images, up to 6 classes and 2 to 5 dimensions."""
    return st.builds(
        random_batch,
        st.integers(0, 2**31),
        images=st.integers(1, 9),
        classes=st.integers(min_classes, 6),
        dim=st.integers(2, 5),
    )


def loss_with_proxies(name: str, proxies: Tensor, **knobs: object) -> ProxyLoss:
    """The loss with these proxies copied in, in their dtype."""
    num_classes, dim = proxies.shape
    loss = build_loss(name, num_classes=num_classes, embedding_dim=dim, **knobs)
    assert isinstance(loss, ProxyLoss)
    loss.to(proxies.dtype)
    with torch.no_grad():
        loss.proxies.copy_(proxies)
    return loss


def at_angles(*degrees: float) -> Tensor:
    """Unit vectors in the plane at these angles, in float64."""
    radians = [math.radians(angle) for angle in degrees]
    rows = [[math.cos(angle), math.sin(angle)] for angle in radians]
    return torch.tensor(rows, dtype=torch.float64)


def gradients(loss: ProxyLoss, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The value and its gradients by embeddings and proxies."""
    leaf = embeddings.detach().clone().requires_grad_()
    loss.zero_grad()
    value = loss(leaf, labels)
    value.backward()
    assert leaf.grad is not None
    assert loss.proxies.grad is not None
    return value.detach(), leaf.grad, loss.proxies.grad.clone()
