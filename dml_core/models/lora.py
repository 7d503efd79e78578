"""Low-rank adaptation: the trunk stays as it is, and small factors beside its layers learn."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dml_core.config.problems import suggest
from dml_core.config.trial import LoraConfig
from dml_core.models.blocks import ModelError

MARK = "lora_"
"""Part of the name of every parameter that peft adds."""


def add_lora(trunk: nn.Sequential, config: LoraConfig, image: Tensor, *, backbone: str) -> None:
    """Adds factors of low rank to layers of the trunk, in place; only these learn.

    A layer W becomes W + (alpha / rank) B A (Hu et al., 2022), with the package peft. B starts at
    zero, so that the trunk first computes what it computed before. A is drawn from torch's default
    generator.

    Args:
        trunk: the blocks of a network.
        config: rank, alpha and targets.
        image: (1, C, H, W) scaled pixels, to find the layers that the network calls.
        backbone: the value of model.backbone, for messages.

    Raises:
        ModelError: if a target names no layer that could be adapted, or peft is not installed.
    """
    names = _choose_layers(_list_layers(trunk, image), config.targets, backbone=backbone)
    peft = _import_peft()
    # Neither dropout nor bias, so that rank, alpha and targets are all that decides.
    adapter = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=names)
    peft.inject_adapter_in_model(adapter, trunk)


def merge_lora(module: nn.Module) -> None:
    """Adds the learned factors to the weights of their layers, and removes them, in place.

    The result has the layers of the original network. Embeddings change by rounding only.
    """
    for parent in list(module.modules()):
        layers: dict[str, Any] = dict(parent.named_children())
        for name, layer in layers.items():
            if hasattr(layer, "merge") and hasattr(layer, "get_base_layer"):
                layer.merge()
                setattr(parent, name, layer.get_base_layer())


def _list_layers(trunk: nn.Sequential, image: Tensor) -> list[str]:
    """Returns the names of the linear layers and convolutions that the trunk calls, in order.

    Some attentions read the weights of a layer without calling it; factors beside it would have no
    effect. Subclasses compute otherwise, and a depthwise convolution has no low rank.
    """
    called: dict[str, None] = {}
    with ExitStack() as hooks, torch.no_grad():
        for name, module in trunk.named_modules():
            if _is_adaptable(module):
                record = partial(_record, called, name)
                hooks.callback(module.register_forward_pre_hook(record).remove)
        trunk.eval()(image)
    return list(called)


def _is_adaptable(module: nn.Module) -> bool:
    if type(module) is nn.Conv2d:
        return module.groups == 1
    return type(module) is nn.Linear


def _record(called: dict[str, None], name: str, *_: Any) -> None:
    called[name] = None


def _choose_layers(layers: list[str], targets: tuple[str, ...], *, backbone: str) -> list[str]:
    if not layers:
        raise ModelError(
            f"trunk.train=lora needs linear layers or convolutions in model.backbone={backbone}, "
            "because it adds factors to them. It calls none. Choose another backbone."
        )
    if not targets:
        return layers
    chosen: dict[str, None] = {}
    for target in targets:
        # The last part of a name, as qkv, or a whole name, as blocks_0.attn.qkv.
        found = [name for name in layers if name == target or name.endswith(f".{target}")]
        if not found:
            ends = sorted({name.rpartition(".")[2] for name in layers})
            raise ModelError(
                f"trunk.lora.targets must name layers of model.backbone={backbone} that it calls. "
                f"Got {target!r}.{suggest(target, [*ends, *layers])} There are {', '.join(ends)}."
            )
        chosen |= dict.fromkeys(found)
    return [name for name in layers if name in chosen]


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            f"trunk.train=lora needs the package peft. It cannot be imported ({error}). "
            "Run: pip install peft"
        ) from error
    return peft
