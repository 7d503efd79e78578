"""The one expensive step of every proxy loss: comparing a batch with the proxies."""

# B = batch, K = proxies that take part, D = embedding dim

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Shorter vectors have no direction that can be trusted; they compare as zero with everything.
SHORTEST = 1e-12
# Far below every logit, yet finite: infinities would meet each other as nan in the gradient.
MASKED = -1e30


class ProxyLogits(NamedTuple):
    """What a proxy loss needs of the (B, K) logits, where a logit is a scaled cosine."""

    target: Tensor
    """(B,) logit of each image with the proxy of its own class."""
    rest: Tensor
    """Log-sum-exp over the pairs of different classes: (B,) for each image, or (K,) for each
    proxy; about -1e30 where there is no such pair."""
    mean_other: Tensor
    """() mean logit over the pairs of different classes, without a gradient; 0 without pairs."""


def compare_with_proxies(
    embeddings: Tensor, proxies: Tensor, targets: Tensor, *, scale: float, over: str
) -> ProxyLogits:
    """Returns the logits scale * cos(x, p), each image's own apart from all the others.

    Both sides are put on the unit sphere here. A zero vector has cosine 0 with everything and
    gets a zero gradient. The computation is in float32 at least; gradients return in the dtypes
    of the inputs, cut to the largest number that those can hold.

    Args:
        embeddings: (B, D), B at least 1.
        proxies: (K, D).
        targets: (B,) row of the proxy of each image's class.
        scale: factor on the cosine, above 0.
        over: `proxies` sums over the other classes' proxies of each image, `images` over the
            other classes' images of each proxy.
    """
    axis = {"images": 0, "proxies": 1}[over]
    return ProxyLogits(*_Comparison.apply(embeddings, proxies, targets, scale, axis))


class _Comparison(torch.autograd.Function):
    """Written out by hand, since autograd would keep and pass over many more (B, K) arrays."""

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
        # Scaling the (B, K) products is cheaper than normalising the (K, D) proxies.
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
        # The targets were no part of the sums: whatever stands there is overwritten.
        gradient.scatter_(1, ctx.column, target_gradient.unsqueeze(1))
        along = gradient * logits
        gradient *= ctx.scale * row_inverse
        for_embeddings = for_proxies = None
        with _without_autocast(embeddings.device.type):
            if ctx.needs_input_grad[0]:
                rows = proxies.to(logits.dtype)
                # Unit length: only the part across the vector turns it.
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
    # Entering autocast costs as much as a small product, so it is left alone where it is off.
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _inverse_length(vectors: Tensor) -> Tensor:
    """Returns 1 / length of each row, and 0 for rows without a direction."""
    length = torch.linalg.vector_norm(vectors, dim=1)
    return torch.where(length > SHORTEST, length.reciprocal(), 0.0)


def _log_sum_exp(logits: Tensor, axis: int) -> Tensor:
    highest = logits.amax(axis, keepdim=True)
    return (logits - highest).exp_().sum(axis).log_() + highest.squeeze(axis)


def _cut(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the gradient in a dtype that may be too narrow for it, without infinities."""
    if dtype == gradient.dtype:
        return gradient
    bound = torch.finfo(dtype).max
    return gradient.clamp(-bound, bound).to(dtype)
