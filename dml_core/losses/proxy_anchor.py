"""Proxy-Anchor: each proxy pulls its images and pushes the others."""

# B = batch, C = classes, D = embedding dim, K = participating proxies

import math

import torch
from torch import Tensor, nn

from dml_core.config.losses import ProxyAnchorConfig
from dml_core.losses.proxies import (
    ProxyLogits,
    ProxyLoss,
    grouped_log_one_plus_sum_exp,
    log_one_plus_exp,
)


class ProxyAnchorLoss(ProxyLoss):
    """Proxy-Anchor (Kim et al., 2020).

    L = 1/|P+| sum over p in P+ of log(1 + sum over x of p's class of e^(-a (s(x, p) - d)))
      + 1/|P|  sum over p in P  of log(1 + sum over the other x of e^(a (s(x, p) + d))),
    where s is the cosine, a = alpha, d = delta, P the participating proxies and P+ those with an
    image in the batch. A proxy without images in a sum adds 0 to it.

    A proxy is active if one of its two sums of exponentials is above 1, which means that it pulls
    or pushes with more than half of its weight.
    """

    sum_over = "images"

    config_class = ProxyAnchorConfig
    config: ProxyAnchorConfig

    def initialize_proxies(self, generator: torch.Generator | None = None) -> None:
        """Draws from N(0, 2/C) (Kaiming, fan out), as the code of the paper does."""
        nn.init.kaiming_normal_(self.proxies, mode="fan_out", generator=generator)

    @property
    def logit_scale(self) -> float:
        """Alpha."""
        return self.config.alpha

    def reduce_logits(self, logits: ProxyLogits, targets: Tensor, *, num_proxies: int) -> Tensor:
        """Returns the mean pull over the batch's proxies plus the mean push over all proxies."""
        margin = self.config.alpha * self.config.delta
        pull = grouped_log_one_plus_sum_exp(margin - logits.target, targets, num_groups=num_proxies)
        push_exponent = logits.rest + margin
        push = log_one_plus_exp(push_exponent)
        is_present = torch.zeros_like(push, dtype=torch.bool).index_fill(0, targets, True)
        is_active = (pull.detach() > math.log(2)) | (push_exponent.detach() > 0)
        self.diagnostics["active_fraction"] = is_active.to(push.dtype).mean()
        return pull.sum() / is_present.sum() + push.sum() / num_proxies
