"""NormSoftmax: a softmax with cosines as logits."""

# B = batch, C = classes, D = embedding dim

import torch
from torch import Tensor, nn

from dml_core.config.losses import NormSoftmaxConfig
from dml_core.losses.proxies import ProxyLogits, ProxyLoss, log_one_plus_exp


class NormSoftmaxLoss(ProxyLoss):
    """NormSoftmax (Zhai and Wu, 2019): cross-entropy over cosines divided by a temperature T.

    L = mean over x of -log( e^(s(x, p_y) / T) / sum over all p of e^(s(x, p) / T) ), where s is
    the cosine. The loss is zero, with a graph, if only one proxy participates. An image is active
    if its class has less than half of the probability.
    """

    config_class = NormSoftmaxConfig
    config: NormSoftmaxConfig

    def initialize_proxies(self, generator: torch.Generator | None = None) -> None:
        """Draws from U(-1/sqrt(D), 1/sqrt(D)) as in the paper: SGD rotates short vectors fast."""
        bound = self.proxies.shape[1] ** -0.5
        nn.init.uniform_(self.proxies, -bound, bound, generator=generator)

    @property
    def logit_scale(self) -> float:
        """The inverse temperature."""
        return 1 / self.config.temperature

    def reduce_logits(self, logits: ProxyLogits, targets: Tensor, *, num_proxies: int) -> Tensor:
        """Returns the mean over images of log(1 + sum over others of e^(logit - target logit))."""
        excess = logits.rest - logits.target
        self.diagnostics["active_fraction"] = (excess.detach() > 0).to(excess.dtype).mean()
        return log_one_plus_exp(excess).mean()
