"""The network: a trunk that sees and a head that embeds."""

from typing import Literal

from pydantic import Field

from dml_core.config.section import Section


class ModelConfig(Section):
    """Trunk, pooling, layer norm, projection, normalisation."""

    backbone: str = Field(default="convnet", pattern=r"^(convnet|(torchvision|timm):[\w.\-]+)$")
    """`convnet` (small, for CPU), `torchvision:<name>` or `timm:<name>`."""
    weights: str = "none"
    """none, imagenet (downloaded by the library), package:efficientnet_lite0, or a file's path."""
    width: int = Field(default=32, ge=4, le=1024)
    """convnet: channels of its first stage; the later ones have two and four times as many."""
    pixel_scaling: Literal["auto", "imagenet", "half", "caffe", "unit"] = "auto"
    """Input pixels: imagenet (mean and std), half (to -1..1), caffe (BGR 0..255 less the mean),
    unit (0..1); auto takes what the weights were made with."""
    pooling: Literal["avg", "max", "avg+max"] = "avg+max"
    """How a feature map becomes a vector; avg+max is their sum."""
    layer_norm: bool = False
    """Affine-free layer norm on the pooled feature, before the projection."""
    embedding_dim: int = Field(default=128, ge=2, le=65536)
    """Length of an embedding."""
    projection: Literal["linear", "linear_no_bias", "none"] = "linear"
    """The layer from pooled feature to embedding; none needs a trunk of embedding_dim channels."""
    normalize: Literal["auto", "yes", "no"] = "auto"
    """L2-normalise the embedding; auto is yes, but for the losses that need raw embeddings."""


class TrunkConfig(Section):
    """Which part of the trunk learns."""

    train: str = Field(default="all", pattern=r"^(all|none|from:[\w.]+)$")
    """all of it, none (only the head), or from:<stage> on (that stage and the later ones)."""
    cache: bool = True
    """Compute the frozen part once for each image and keep it on disk, shared by all trials."""
    cache_views: int = Field(default=1, ge=1, le=64)
    """Versions of each training image in the cache: the plain one, the others augmented."""

    @property
    def keeps_activations(self) -> bool:
        """Whether a trial reads what a frozen part made of the images, and not the images."""
        return self.cache and self.train != "all"
