"""A loss of the project folder, as a user writes one, for tests that train with it."""

import torch
from torch import Tensor, nn


class WeightedPairs(nn.Module):
    """Softmax over all pairs of a batch, with a learned weight for each class.

    It sees every pair, and it has parameters: distributed training must get both right.
    """

    def __init__(self, num_classes: int, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature
        self.weights = nn.Parameter(torch.linspace(0.5, 1.5, num_classes))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Returns the weighted mean over the positive pairs."""
        similarities = embeddings @ embeddings.T / self.temperature
        itself = torch.eye(len(labels), dtype=torch.bool)
        positives = (labels[:, None] == labels) & ~itself
        log_total = similarities.masked_fill(itself, -1e30).logsumexp(dim=1, keepdim=True)
        costs = ((log_total - similarities) * positives).sum(dim=1)
        return (self.weights[labels] * costs).sum() / positives.sum()
