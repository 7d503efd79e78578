"""Differentiates a proxy loss by the similarity of each image with each proxy."""

# B = batch, C = classes, D = embedding dim

import torch
from torch import Tensor
from torch.nn import functional

from dml_core.losses.proxies import ProxyLoss
from dml_core.losses.proxy_logits import MASKED, ProxyLogits


def cosine_similarities(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Returns the (B, C) cosines of (B, D) embeddings with (C, D) proxies, in float64."""
    return functional.normalize(embeddings.double()) @ functional.normalize(proxies.double()).T


def loss_of_similarities(loss: ProxyLoss, similarities: Tensor, labels: Tensor) -> Tensor:
    """Returns the scalar loss as a function of the cosines, which carry the gradient.

    All proxies take part, also where training draws some of them.

    Args:
        loss: any loss with proxies; of its proxies nothing but the number is used.
        similarities: (B, C).
        labels: (B,) class indices.
    """
    logits = similarities * loss.logit_scale
    column = labels.unsqueeze(1)
    target = logits.gather(1, column).squeeze(1)
    others = logits.scatter(1, column, MASKED)
    rest = torch.logsumexp(others, dim=0 if loss.sum_over == "images" else 1)
    unused = torch.zeros((), dtype=logits.dtype, device=logits.device)
    parts = ProxyLogits(target, rest, mean_other=unused)
    return loss.reduce_logits(parts, labels, num_proxies=similarities.shape[1])


def similarity_gradients(loss: ProxyLoss, similarities: Tensor, labels: Tensor) -> Tensor:
    """Returns the (B, C) derivatives of the loss by each cosine, all others held still."""
    leaf = similarities.detach().requires_grad_(True)
    with torch.enable_grad():
        value = loss_of_similarities(loss, leaf, labels)
    (gradients,) = torch.autograd.grad(value, leaf)
    return gradients
