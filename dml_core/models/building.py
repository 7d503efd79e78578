"""Builds the embedding model that a configuration describes."""

import difflib
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from dml_core.config.problems import suggest
from dml_core.config.trial import LoraConfig, ModelConfig, TrialConfig
from dml_core.models.blocks import Blocks, ModelError, as_sequential, cut_blocks, find_blocks
from dml_core.models.embedding_model import (
    MAP_POOLINGS,
    PIXEL_STATISTICS,
    EmbeddingHead,
    EmbeddingModel,
    GlobalPooling,
    PixelScaling,
    PixelStatistics,
)
from dml_core.models.lora import add_lora
from dml_core.models.timm_blocks import (
    check_patch,
    find_map_blocks,
    find_token_blocks,
    say_own_pooling,
)
from dml_core.models.weights import load_weights
from dml_core.own_code import OwnCodeError, call_with_options, is_own, load_object


@dataclass(frozen=True)
class Backbone:
    """A trunk with its weights, before it is cut into frozen and learning blocks."""

    name: str
    """The value of model.backbone."""
    blocks: Blocks
    """Applied in sequence, they compute the features; a single block if they are unknown."""
    in_channels: int
    """Channels of the scaled image."""
    statistics: PixelStatistics
    """Pixel scaling if model.pixel_scaling is auto."""
    own_pooling: str = "avg"
    """The network's own pooling, for messages; empty if it is unknown."""
    has_tokens: bool = False
    """Whether its last block pools tokens as model.pooling says."""


def build_model(config: TrialConfig, *, in_channels: int) -> EmbeddingModel:
    """Returns the model of a trial, in training mode.

    Initial weights come from torch's default generator.

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
        lora=config.trunk.lora,
    )


def build_embedding_model(
    config: ModelConfig,
    *,
    train: str,
    in_channels: int,
    input_size_px: int,
    normalize: bool,
    lora: LoraConfig | None = None,
) -> EmbeddingModel:
    """Returns a model, in training mode.

    Args:
        config: backbone, weights and head.
        train: what learns: all, none, from:<block> or lora.
        in_channels: channels of the images, 1 or 3.
        input_size_px: side of the images.
        normalize: whether embeddings have unit length; replaces config.normalize, which may be
            auto.
        lora: the factors if train is lora; None takes the defaults.

    Raises:
        ModelError: if the parts are incompatible with each other, the weights or the images.
    """
    backbone = build_backbone(
        config.backbone,
        weights=config.weights,
        width=config.width,
        in_channels=in_channels,
        input_size_px=input_size_px,
        pooling=config.pooling,
    )
    scaling = _build_scaling(config, backbone, in_channels=in_channels)
    features = _compute_example(backbone, input_size_px=input_size_px)
    _check_pooling(backbone, config.pooling, has_map=features.ndim == 4)
    frozen, trunk = cut_blocks(backbone.blocks, train, backbone=config.backbone)
    if not trunk and features.ndim == 4:
        # Pooling in the frozen part reduces the cached activations to one vector per image.
        frozen = {**frozen, "pool": GlobalPooling(config.pooling)}
    head = EmbeddingHead(
        num_features=features.shape[1],
        embedding_dim=config.embedding_dim,
        pooling=config.pooling,
        layer_norm=config.layer_norm,
        projection=config.projection,
        normalize=normalize,
    )
    learning = _keep_input_whole(as_sequential(trunk))
    if train == "lora":
        image = _make_image(backbone, input_size_px)
        add_lora(learning, lora or LoraConfig(), image, backbone=config.backbone)
    return EmbeddingModel(
        scaling=scaling,
        frozen=as_sequential(frozen),
        trunk=learning,
        head=head,
        is_adapted=train == "lora",
    )


def _build_scaling(config: ModelConfig, backbone: Backbone, *, in_channels: int) -> PixelScaling:
    is_auto = config.pixel_scaling == "auto"
    statistics = backbone.statistics if is_auto else PIXEL_STATISTICS[config.pixel_scaling]
    return PixelScaling(statistics, in_channels=in_channels, out_channels=backbone.in_channels)


def _compute_example(backbone: Backbone, *, input_size_px: int) -> Tensor:
    """Returns the features of a black image: (1, F, H, W), or (1, F) if the trunk pools them."""
    image = _make_image(backbone, input_size_px)
    try:
        # In evaluation mode no statistics are updated and no random numbers are drawn.
        with torch.no_grad():
            features: Tensor = as_sequential(backbone.blocks).eval()(image)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ModelError(
            f"model.backbone={backbone.name} must accept images of {input_size_px} px, the size of "
            f"the network's input. It rejects them ({str(error)[:300]}). "
            "Set augmentation.input_size_px to a size that it accepts."
        ) from error
    if features.ndim not in (2, 4):
        raise ModelError(
            f"model.backbone={backbone.name} must return features (B, F) or (B, F, H, W). "
            f"Got {tuple(features.shape)}."
        )
    return features


def _make_image(backbone: Backbone, input_size_px: int) -> Tensor:
    return torch.zeros(1, backbone.in_channels, input_size_px, input_size_px)


def _check_pooling(backbone: Backbone, pooling: str, *, has_map: bool) -> None:
    own = f" The network's own pooling is {backbone.own_pooling}." if backbone.own_pooling else ""
    if has_map and pooling not in MAP_POOLINGS:
        known = [*MAP_POOLINGS, *(["own"] if backbone.name.startswith("timm:") else [])]
        raise ModelError(
            f"model.pooling must be one of {', '.join(known)} for model.backbone={backbone.name}, "
            f"which has a feature map and no tokens. Got {pooling}.{own}"
        )
    is_free = backbone.has_tokens or is_own(backbone.name)
    if not has_map and not is_free and pooling != "own":
        raise ModelError(
            f"model.pooling must be own for model.backbone={backbone.name}, because the network "
            f"pools its features itself, so that {pooling} would have no effect.{own}"
        )


def _keep_input_whole(trunk: nn.Sequential) -> nn.Sequential:
    # After a cut, an in-place ReLU would overwrite the cached activations.
    first = next(iter(trunk), None)
    if isinstance(first, nn.ReLU):
        first.inplace = False
    return trunk


def build_convnet(*, in_channels: int, width: int) -> nn.Sequential:
    """Returns three blocks with `width`, `2 * width` and `4 * width` channels.

    They map (B, in_channels, H, W) to (B, 4 * width, H // 4, W // 4), so images need at least 4
    pixels per side. Block names are part of state dicts and of trunk.train.
    """
    return nn.Sequential(
        OrderedDict(
            stage1=_build_block(in_channels, width, halves=True),
            stage2=_build_block(width, 2 * width, halves=True),
            stage3=_build_block(2 * width, 4 * width, halves=False),
        )
    )


def _build_block(in_channels: int, out_channels: int, *, halves: bool) -> nn.Sequential:
    # Batch norm subtracts the mean, so a bias of the convolution would have no effect.
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
    layers: list[nn.Module] = [convolution, nn.BatchNorm2d(out_channels)]
    if halves:
        # ReLU is monotone, so pooling may come first; ReLU then processes a quarter of the values.
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


def build_backbone(
    name: str,
    *,
    weights: str,
    width: int,
    in_channels: int,
    input_size_px: int,
    pooling: str = "own",
) -> Backbone:
    """Returns the configured trunk without its classifier.

    Args:
        name: convnet, torchvision:<name>, timm:<name> or python:<module>:<Name>.
        weights: none, imagenet, package:<name> or a file path.
        width: channels of the convnet's first block.
        in_channels: channels of the images, for the convnet.
        input_size_px: side of the images, for trunks with a fixed input size.
        pooling: how a transformer pools its tokens; feature maps are pooled by the head.
    """
    library, _, architecture = name.partition(":")
    if is_own(name):
        model, backbone = _build_own(name, weights, in_channels, input_size_px)
    elif library == "convnet":
        model, backbone = _build_convnet(weights, width=width, in_channels=in_channels)
    elif library == "torchvision":
        model, backbone = _build_torchvision(architecture, weights, input_size_px)
    else:
        model, backbone = _build_timm(architecture, weights, input_size_px, pooling)
    if weights not in ("none", "imagenet"):
        load_weights(model, backbone.blocks, weights, backbone=name)
    return backbone


def _build_convnet(weights: str, *, width: int, in_channels: int) -> tuple[nn.Module, Backbone]:
    if weights == "imagenet":
        raise ModelError(
            "model.weights=imagenet needs a backbone of torchvision or timm, because there are no "
            "published weights for the convnet. Got model.backbone=convnet. "
            "Set model.weights to none or to a file."
        )
    model = build_convnet(in_channels=in_channels, width=width)
    blocks = dict(model.named_children())
    return model, Backbone("convnet", blocks, in_channels, PIXEL_STATISTICS["half"])


def _build_own(
    name: str, weights: str, in_channels: int, size_px: int
) -> tuple[nn.Module, Backbone]:
    """Builds a network of the project folder; it maps images to (B, F) or (B, F, H, W) features."""
    if weights == "imagenet":
        raise ModelError(
            f"model.weights=imagenet needs a backbone of torchvision or timm. Got {name}. "
            "Set model.weights to none or to a file, or load weights in the network itself."
        )
    try:
        model = call_with_options(
            load_object(name),
            name=name,
            options={},
            given={"in_channels": in_channels, "input_size_px": size_px},
            key="model.backbone",
            suggest=suggest,
        )
    except OwnCodeError as error:
        raise ModelError(f"model.backbone={error}") from error
    if not isinstance(model, nn.Module):
        found = type(model).__name__
        raise ModelError(f"model.backbone={name} must be a torch.nn.Module. Got {found}.")
    # The blocks of a plain sequence are known, so that trunk.train can name them.
    blocks = dict(model.named_children()) if isinstance(model, nn.Sequential) else {"model": model}
    return model, Backbone(name, blocks, in_channels, PIXEL_STATISTICS["half"])


def _build_torchvision(name: str, weights: str, size_px: int) -> tuple[nn.Module, Backbone]:
    import torchvision.models as library

    full_name = f"torchvision:{name}"
    _check_is_known(full_name, name, library.list_models(module=library))
    is_inception = name in ("googlenet", "inception_v3")
    arguments: dict[str, Any] = {}
    if weights == "imagenet":
        arguments["weights"] = "DEFAULT"
    elif is_inception:
        arguments = {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_") and weights != "imagenet":
        arguments["image_size"] = size_px
    model = _create(full_name, weights, library.get_model, arguments)
    # torchvision converts ImageNet scaling to -1..1 inside; here pixels are scaled once.
    scaling = "half" if is_inception else "imagenet"
    blocks = find_blocks(model)
    if blocks is None:
        model.heads = nn.Identity()
        blocks = {"model": model}
    return model, Backbone(full_name, blocks, 3, PIXEL_STATISTICS[scaling])


def _build_timm(name: str, weights: str, size_px: int, pooling: str) -> tuple[nn.Module, Backbone]:
    import timm

    full_name = f"timm:{name}"
    architecture = name.partition(".")[0]
    _check_is_known(full_name, architecture, timm.list_models())
    if name != architecture:
        _check_is_known(full_name, name, timm.list_pretrained(f"{architecture}.*"))
    arguments: dict[str, Any] = {"pretrained": weights == "imagenet", "num_classes": 0}
    # Transformers have one position embedding per patch, so their image size is fixed.
    published = timm.get_pretrained_cfg(name)
    if published is not None and published.fixed_input_size:
        arguments["img_size"] = size_px
    model = _create(full_name, weights, timm.create_model, arguments)
    settings = model.pretrained_cfg
    statistics = PixelStatistics.from_fractions(tuple(settings["mean"]), tuple(settings["std"]))
    check_patch(model, size_px, backbone=full_name)
    tokens = find_token_blocks(model, pooling, backbone=full_name)
    blocks = tokens or find_map_blocks(model, pooling, size_px=size_px)
    own, has_tokens = say_own_pooling(model), tokens is not None
    return model, Backbone(full_name, blocks, 3, statistics, own, has_tokens)


def _create(full_name: str, weights: str, create: Any, arguments: dict[str, Any]) -> Any:
    try:
        with warnings.catch_warnings():
            # Users cannot act on these warnings (old names, slow initialization).
            warnings.simplefilter("ignore")
            return create(full_name.partition(":")[2], **arguments)
    except Exception as error:
        _refuse(full_name, weights, error)


def _refuse(full_name: str, weights: str, error: Exception) -> NoReturn:
    reason = f"{type(error).__name__}: {error}"[:300]
    if weights == "imagenet":
        raise ModelError(
            f"model.weights=imagenet downloads the weights of {full_name}, and the download failed "
            f"({reason}). Check the network and that such weights exist, or download the file "
            "elsewhere and set model.weights to its path."
        ) from error
    raise ModelError(
        f"model.backbone={full_name} cannot be built ({reason}). "
        "Check augmentation.input_size_px, or choose another backbone."
    ) from error


def _check_is_known(full_name: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.4)
    hint = f"Similar names: {', '.join(near)}. " if near else ""
    library = full_name.partition(":")[0]
    raise ModelError(
        f"model.backbone must name an image classifier of {library}, because it is the trunk. "
        f"Got {full_name}. {hint}List them all with {library}'s list_models()."
    )
