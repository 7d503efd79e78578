"""ArcFace: a softmax with an angular margin."""

# B = batch, C = classes, D = embedding dim

import math

import torch
from torch import Tensor, nn

from dml_core.config.losses import ArcFaceConfig
from dml_core.losses.proxies import ProxyLogits, ProxyLoss, log_one_plus_exp


class ArcFaceLoss(ProxyLoss):
    """ArcFace (Deng et al., 2019): a softmax that adds a margin m to the angle t_y of the class.

    L = mean over x of -log( e^(a cos(t_y + m)) / (e^(a cos(t_y + m)) + sum over the other
    classes of e^(a cos t)) ), where a is the scale. If t_y + m exceeds pi, cos t_y - m sin m
    replaces cos(t_y + m), which would increase again. The loss is zero, with a graph, if only one
    proxy participates. An image is active if its class, with margin, has less than half of the
    probability.
    """

    config_class = ArcFaceConfig
    config: ArcFaceConfig

    def initialize_proxies(self, generator: torch.Generator | None = None) -> None:
        """Draws from U(-1/sqrt(D), 1/sqrt(D)), as NormSoftmax, which is ArcFace with margin 0."""
        bound = self.proxies.shape[1] ** -0.5
        nn.init.uniform_(self.proxies, -bound, bound, generator=generator)

    @property
    def logit_scale(self) -> float:
        """The scale."""
        return self.config.scale

    def reduce_logits(self, logits: ProxyLogits, targets: Tensor, *, num_proxies: int) -> Tensor:
        """Returns the mean over images of log(1 + weight of the others / weight of the class)."""
        scale = self.config.scale
        own = scale * add_angle(logits.target / scale, margin=self.config.margin)
        excess = logits.rest - own
        self.diagnostics["active_fraction"] = (excess.detach() > 0).to(excess.dtype).mean()
        return log_one_plus_exp(excess).mean()


def add_angle(cosines: Tensor, *, margin: float) -> Tensor:
    """Returns cos(t + margin) for each cos(t), continued as decreasing if t + margin > pi.

    The gradient is finite everywhere: an angle with a sine below rounding counts as 0 or pi.
    """
    squared_sine = 1 - cosines.square()
    has_angle = squared_sine > torch.finfo(cosines.dtype).eps
    # The inner `where` keeps the infinite slope of the root at 0 out of the gradient.
    sine = torch.where(has_angle, torch.where(has_angle, squared_sine, 1.0).sqrt(), 0.0)
    turned = cosines * math.cos(margin) - sine * math.sin(margin)
    if margin == 0:
        return turned
    # t <= pi - margin, in terms of cosines, which decrease with the angle.
    lowest_cosine = -math.cos(margin) if margin <= math.pi else math.inf
    return torch.where(cosines >= lowest_cosine, turned, cosines - margin * math.sin(margin))
