"""Turns a trunk's features into an embedding."""

# B = batch, F = features, D = embedding dim, H = height, W = width

from typing import Literal

import torch
from torch import Tensor, nn

from dml_core.models.problems import ModelError

Pooling = Literal["avg", "max", "avg+max"]
Projection = Literal["linear", "linear_no_bias", "none"]


class GlobalPooling(nn.Module):
    """Reduces a feature map to one number a channel; a vector passes as it is."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, features: Tensor) -> Tensor:
        """Returns (B, F) for (B, F, H, W) or (B, F)."""
        if features.ndim == 2:
            return features
        if self.pooling == "avg":
            return features.mean(dim=(2, 3))
        if self.pooling == "max":
            return features.amax(dim=(2, 3))
        return features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))

    def extra_repr(self) -> str:
        """Returns the kind of pooling."""
        return self.pooling


class EmbeddingHead(nn.Module):
    """Pooling, layer norm, projection and L2 norm, the last three where asked for.

    The layer norm has no weights of its own. The projection starts with He's normal weights
    (fan out) and a zero bias.
    """

    def __init__(
        self,
        *,
        num_features: int,
        embedding_dim: int,
        pooling: Pooling,
        layer_norm: bool,
        projection: Projection,
        normalize: bool,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.pool = GlobalPooling(pooling)
        self.layer_norm = (
            nn.LayerNorm(num_features, elementwise_affine=False) if layer_norm else nn.Identity()
        )
        self.projection = _build_projection(num_features, embedding_dim, projection)

    def forward(self, features: Tensor) -> Tensor:
        """Returns (B, D) embeddings in float32 or better, for (B, F, H, W) or (B, F)."""
        embeddings: Tensor = self.projection(self.layer_norm(self.pool(features)))
        # Under autocast the projection gives half precision, too coarse for distances.
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        return l2_normalize(embeddings) if self.normalize else embeddings


def l2_normalize(embeddings: Tensor) -> Tensor:
    """Returns (B, D) vectors of unit length; a zero vector stays zero."""
    # With 1e-12 below the root, a zero vector has a finite gradient (Kim et al. 2020 do this).
    return embeddings / (embeddings.square().sum(dim=1, keepdim=True) + 1e-12).sqrt()


def _build_projection(num_features: int, embedding_dim: int, projection: Projection) -> nn.Module:
    if projection == "none":
        _check_dimensions_agree(num_features, embedding_dim)
        return nn.Identity()
    layer = nn.Linear(num_features, embedding_dim, bias=projection == "linear")
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _check_dimensions_agree(num_features: int, embedding_dim: int) -> None:
    if num_features != embedding_dim:
        raise ModelError(
            "model.projection=none hands the pooled feature on as the embedding, so "
            f"model.embedding_dim must be the trunk's {num_features} channels. "
            f"Got model.embedding_dim={embedding_dim}. Set it to {num_features}, or set "
            "model.projection to linear."
        )
