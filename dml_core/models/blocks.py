"""Divides a trunk into an ordered list of named blocks, so that the first ones can be frozen."""

# B = batch, C = channels, F = features, H = height, W = width

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from dml_core.config.problems import suggest

Blocks = dict[str, nn.Module]


class ModelError(ValueError):
    """A network cannot be built; the message names the key, the value found and the remedy."""


# One recipe per class. `a` is a child; `a.*` and `*` are all children of a or of the model, in
# order; `name=a+b` is one block of several children; `+a` appends a to the previous block.
_RECIPES: dict[str, tuple[str, ...]] = {
    "torchvision.models.resnet.ResNet": (
        "stem=conv1+bn1+relu+maxpool",
        *("layer1", "layer2", "layer3", "layer4"),
    ),
    "torchvision.models.googlenet.GoogLeNet": ("*",),
    "torchvision.models.inception.Inception3": ("*",),
    "torchvision.models.alexnet.AlexNet": ("features.*",),
    "torchvision.models.squeezenet.SqueezeNet": ("features.*",),
    "torchvision.models.vgg.VGG": ("features.*",),
    "torchvision.models.mobilenetv2.MobileNetV2": ("features.*",),
    "torchvision.models.mobilenetv3.MobileNetV3": ("features.*",),
    "torchvision.models.efficientnet.EfficientNet": ("features.*",),
    "torchvision.models.convnext.ConvNeXt": ("features.*",),
    "torchvision.models.densenet.DenseNet": ("features.*", "+relu"),
    "torchvision.models.mnasnet.MNASNet": ("layers.*",),
    "torchvision.models.swin_transformer.SwinTransformer": ("features.*", "norm=norm+permute"),
    "torchvision.models.shufflenetv2.ShuffleNetV2": (
        "stem=conv1+maxpool",
        *("stage2", "stage3", "stage4", "conv5"),
    ),
    "torchvision.models.regnet.RegNet": ("stem", "trunk_output.*"),
    "torchvision.models.maxvit.MaxVit": ("stem", "blocks.*"),
    "timm.models.resnet.ResNet": (
        "stem=conv1+bn1+act1+maxpool",
        *("layer1", "layer2", "layer3", "layer4"),
    ),
    "timm.models.efficientnet.EfficientNet": (
        "stem=conv_stem+bn1",
        "blocks.*",
        "head=conv_head+bn2",
    ),
    "timm.models.mobilenetv3.MobileNetV3": ("stem=conv_stem+bn1", "blocks.*"),
    "timm.models.convnext.ConvNeXt": ("stem", "stages.*", "+norm_pre"),
    "timm.models.regnet.RegNet": ("stem", "s1", "s2", "s3", "s4", "+final_conv"),
    "timm.models.inception_v3.InceptionV3": ("*",),
    "timm.models.densenet.DenseNet": ("features.*",),
    "timm.models.vgg.VGG": ("features.*",),
}

# Children that come after the feature map, so that no block holds them.
_AFTER_THE_TRUNK = frozenset(
    {"avgpool", "dropout", "fc", "global_pool", "head_drop", "aux1", "aux2", "AuxLogits"}
    | {"classifier", "fc_norm", "head"}
)
_LISTS = ("blocks", "features", "layers", "stages")
"""Children whose own children are blocks."""


def find_blocks(model: nn.Module) -> Blocks | None:
    """Returns the blocks of a model by name, in order, or None for a class without a recipe.

    Applied in sequence, they compute the feature map (B, F, H, W) before pooling and classifier.
    """
    # By exact class: a subclass may compute its features differently.
    recipe = _RECIPES.get(f"{type(model).__module__}.{type(model).__name__}")
    if recipe is None:
        return None
    blocks: Blocks = {}
    for step in recipe:
        if step.startswith("+"):
            _join_to_last(blocks, model, step[1:])
        else:
            blocks.update(_expand(model, step))
    return blocks


def find_child_blocks(model: nn.Module, image: Tensor) -> Blocks | None:
    """Returns the children of a timm network as blocks, if they are the feature map in sequence.

    For classes without a recipe. The children, in the order of their definition, must compute the
    bits of `forward_features` on the image, and hold every parameter before the head: one that they
    do not hold, such as a position embedding, may have no effect before it is trained.

    Args:
        model: the network as timm builds it.
        image: (1, C, H, W) random pixels.
    """
    blocks: Blocks = {}
    for name, child in model.named_children():
        if name in _AFTER_THE_TRUNK or isinstance(child, nn.Identity):
            continue
        if name in _LISTS and isinstance(child, nn.Sequential | nn.ModuleList):
            blocks.update((f"{name}.{inner}", part) for inner, part in child.named_children())
        else:
            blocks[name] = child
    head = [child for name, child in model.named_children() if name in _AFTER_THE_TRUNK]
    held = {id(p) for part in (*blocks.values(), *head) for p in part.parameters()}
    if len(blocks) < 2 or any(id(p) not in held for p in model.parameters()):
        return None
    return blocks if _compute_features(model, blocks, image) else None


def _compute_features(model: nn.Module, blocks: Blocks, image: Tensor) -> bool:
    """Returns whether blocks in sequence have the bits of the model's own 4-D feature map."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            expected = model.forward_features(image)  # type: ignore[operator]
            found = as_sequential(blocks)(image)
    except (RuntimeError, ValueError, TypeError, AssertionError, AttributeError):
        # Children of another design; a size that the network refuses is reported later.
        return False
    finally:
        model.train(was_training)
    is_map = isinstance(expected, Tensor) and expected.ndim == 4
    return is_map and isinstance(found, Tensor) and torch.equal(found, expected)


def as_sequential(blocks: Mapping[str, nn.Module]) -> nn.Sequential:
    """Returns the blocks as one module; a dot in a name becomes an underscore."""
    return nn.Sequential(OrderedDict((_member(name), block) for name, block in blocks.items()))


def cut_blocks(blocks: Blocks, train: str, *, backbone: str) -> tuple[Blocks, Blocks]:
    """Returns the frozen blocks and those that learn.

    Args:
        blocks: all blocks by name, in order.
        train: the value of trunk.train: all, none, lora (which freezes no block) or from:<block>.
        backbone: the value of model.backbone, for messages.

    Raises:
        ModelError: if train names a block that the trunk does not have.
    """
    if train in ("all", "lora"):
        return {}, blocks
    if train == "none":
        return blocks, {}
    names = list(blocks)
    first = _find_first_block(names, train.removeprefix("from:"), backbone=backbone)
    frozen = {name: blocks[name] for name in names[:first]}
    return frozen, {name: blocks[name] for name in names[first:]}


def _find_first_block(names: list[str], wanted: str, *, backbone: str) -> int:
    if len(names) < 2:
        raise ModelError(
            f"trunk.train=from:{wanted} needs a trunk with known blocks, because it cuts between "
            f"two blocks. The blocks of model.backbone={backbone} are unknown. "
            "Set trunk.train to all or none, or choose another backbone."
        )
    if wanted not in names:
        raise ModelError(
            f"trunk.train must name a block of model.backbone={backbone}, because the blocks "
            f"before it are frozen. Got from:{wanted}.{suggest(wanted, names)} "
            f"Its blocks are {', '.join(names)}."
        )
    return names.index(wanted)


def _expand(model: nn.Module, step: str) -> Iterator[tuple[str, nn.Module]]:
    name, equals, paths = step.partition("=")
    if equals:
        yield name, as_sequential({path: model.get_submodule(path) for path in paths.split("+")})
    elif step.endswith("*"):
        parent = step.removesuffix("*")
        for child, module in model.get_submodule(parent.removesuffix(".")).named_children():
            if child not in _AFTER_THE_TRUNK:
                yield f"{parent}{child}", module
    else:
        yield step, model.get_submodule(step)


def _join_to_last(blocks: Blocks, model: nn.Module, name: str) -> None:
    # torchvision's DenseNet applies its last ReLU as a function, so it has no such child.
    module = nn.ReLU(inplace=True) if name == "relu" else model.get_submodule(name)
    if isinstance(module, nn.Identity):
        return
    last = next(reversed(blocks))
    # The name is part of stored state dicts.
    blocks[last] = as_sequential({"stage": blocks[last], name: module})


def _member(name: str) -> str:
    return name.replace(".", "_")
