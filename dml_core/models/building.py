"""Builds the embedding model that a configuration describes."""

import torch
from torch import Tensor, nn

from dml_core.config.model import ModelConfig
from dml_core.config.trial import TrialConfig
from dml_core.models.backbones import Backbone, build_backbone
from dml_core.models.embedding_model import EmbeddingModel
from dml_core.models.head import EmbeddingHead, GlobalPooling
from dml_core.models.pixel_scaling import PIXEL_STATISTICS, PixelScaling
from dml_core.models.problems import ModelError
from dml_core.models.stages import as_sequential, cut_stages


def build_model(config: TrialConfig, *, in_channels: int) -> EmbeddingModel:
    """Returns the model of a trial, in training mode.

    Initial weights come from torch's default generator: the same seed gives the same bits.

    Args:
        config: the trial.
        in_channels: channels of the prepared images, 1 or 3.
    """
    return build_embedding_model(
        config.model,
        train=config.trunk.train,
        in_channels=in_channels,
        input_size_px=config.input_size_px,
        normalize=config.normalizes_embeddings,
    )


def build_embedding_model(
    config: ModelConfig, *, train: str, in_channels: int, input_size_px: int, normalize: bool
) -> EmbeddingModel:
    """Returns a model, in training mode.

    Args:
        config: backbone, weights and head.
        train: which stages learn: all, none or from:<stage>.
        in_channels: channels of the images, 1 or 3.
        input_size_px: side of the images.
        normalize: whether embeddings have unit length; the place of config.normalize, which
            may leave it to the loss.

    Raises:
        ModelError: where the parts do not fit each other, the weights or the images.
    """
    backbone = build_backbone(
        config.backbone,
        weights=config.weights,
        width=config.width,
        in_channels=in_channels,
        input_size_px=input_size_px,
    )
    scaling = _build_scaling(config, backbone, in_channels=in_channels)
    num_features = _count_features(backbone, input_size_px=input_size_px)
    frozen, trunk = cut_stages(backbone.stages, train, backbone=config.backbone)
    if not trunk:
        # Pooling here makes what is kept of each image a short vector.
        frozen = {**frozen, "pool": GlobalPooling(config.pooling)}
    head = EmbeddingHead(
        num_features=num_features,
        embedding_dim=config.embedding_dim,
        pooling=config.pooling,
        layer_norm=config.layer_norm,
        projection=config.projection,
        normalize=normalize,
    )
    return EmbeddingModel(
        scaling=scaling,
        frozen=as_sequential(frozen),
        trunk=_keep_input_whole(as_sequential(trunk)),
        head=head,
    )


def _build_scaling(config: ModelConfig, backbone: Backbone, *, in_channels: int) -> PixelScaling:
    is_auto = config.pixel_scaling == "auto"
    statistics = backbone.statistics if is_auto else PIXEL_STATISTICS[config.pixel_scaling]
    return PixelScaling(statistics, in_channels=in_channels, out_channels=backbone.in_channels)


def _count_features(backbone: Backbone, *, input_size_px: int) -> int:
    """Returns the channels of the trunk's features, by looking at those of a black image."""
    image = torch.zeros(1, backbone.in_channels, input_size_px, input_size_px)
    try:
        # Without training mode no statistics move and no random numbers are drawn.
        with torch.no_grad():
            features: Tensor = as_sequential(backbone.stages).eval()(image)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ModelError(
            f"model.backbone={backbone.name} must take images of {input_size_px} px, the size of "
            f"the network's input. It refuses them ({str(error)[:300]}). "
            "Set augmentation.input_size_px to a size that it takes."
        ) from error
    assert features.ndim in (2, 4), f"{backbone.name} gives features of {tuple(features.shape)}"
    return features.shape[1]


def _keep_input_whole(trunk: nn.Sequential) -> nn.Sequential:
    # A cut before an in-place ReLU would let it overwrite the activations that are kept.
    first = next(iter(trunk), None)
    if isinstance(first, nn.ReLU):
        first.inplace = False
    return trunk
