"""Proxy-NCA: neighborhood components over proxies."""

# B = batch, C = classes, D = embedding dim

import torch
from torch import Tensor, nn

from dml_core.config.losses import ProxyNcaConfig
from dml_core.losses.proxies import ProxyLogits, ProxyLoss, log_one_plus_exp


class ProxyNcaLoss(ProxyLoss):
    """Proxy-NCA (Movshovitz-Attias et al., 2017) on the unit sphere.

    L = mean over x of -log( e^(-a |x - p_y|^2) / sum over p in Z of e^(-a |x - p|^2) ), where a is
    the scale. Z holds the proxies of the other classes (the paper's formula, which can be
    negative), or all proxies with `target_in_denominator`. The loss is zero, with a graph, if only
    one proxy participates. An image is active if the other proxies together outweigh its own.
    """

    config_class = ProxyNcaConfig
    config: ProxyNcaConfig

    def initialize_proxies(self, generator: torch.Generator | None = None) -> None:
        """Draws from N(0, 1), as public implementations do."""
        nn.init.normal_(self.proxies, generator=generator)

    @property
    def logit_scale(self) -> float:
        """Twice the scale: -a |x - p|^2 = 2 a cos(x, p) - 2 a, and the constant cancels."""
        return 2 * self.config.scale

    def reduce_logits(self, logits: ProxyLogits, targets: Tensor, *, num_proxies: int) -> Tensor:
        """Returns the mean over images of log(weight of the others / weight of the target)."""
        excess = logits.rest - logits.target
        self.diagnostics["active_fraction"] = (excess.detach() > 0).to(excess.dtype).mean()
        if self.config.target_in_denominator:
            return log_one_plus_exp(excess).mean()
        # Without another class the denominator is empty and there is nothing to learn.
        return excess.mean() if num_proxies > 1 else 0 * logits.target.sum()
