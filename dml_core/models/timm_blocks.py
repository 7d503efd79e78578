"""Networks of timm as blocks: vision transformers with their tokens, and the others."""

# B = batch, F = features, H = height, N = tokens, W = width

import copy
from typing import Any

import torch
from torch import Tensor, nn

from dml_core.models.blocks import (
    Blocks,
    ModelError,
    as_sequential,
    find_blocks,
    find_child_blocks,
)

TOKEN_POOLINGS = ("cls", "mean", "cls+mean", "own")
# Exact classes: another one may use its tokens differently.
_TRANSFORMERS = ("timm.models.vision_transformer.VisionTransformer", "timm.models.eva.Eva")
_AFTER_THE_TOKENS = ("blocks", "norm", "fc_norm", "attn_pool", "head_drop", "head")
_TOKEN_NAMES = {"token": "cls", "avg": "mean", "map": "own (attention)"}
_MAP_NAMES = {"avg": "avg", "max": "max", "avgmax": "own (the mean of avg and max)"}
"""Our names of timm's `global_pool`."""


def find_token_blocks(model: Any, pooling: str, *, backbone: str) -> Blocks | None:
    """Returns the blocks of a vision transformer of timm, or None for another network.

    Applied in sequence, they compute the pooled (B, F) features: `embed` makes the tokens,
    `blocks.0` and so on follow, and `pool` applies the last norm and the pooling.

    Args:
        model: the network as timm builds it.
        pooling: the value of model.pooling.
        backbone: the value of model.backbone, for messages.

    Raises:
        ModelError: if the network has no such pooling.
    """
    if f"{type(model).__module__}.{type(model).__name__}" not in _TRANSFORMERS:
        return None
    rope = getattr(model, "rope", None)
    # Learned rotations belong to all blocks at once, so no cut separates them.
    if rope is not None and (getattr(model, "rope_mixed", False) or any(rope.parameters())):
        return None
    _check_pooling(model, pooling, backbone=backbone)
    shape = model.patch_embed.grid_size if model.dynamic_img_size else None
    blocks: Blocks = {"embed": TokenEmbedding(model)}
    for name, block in model.blocks.named_children():
        blocks[f"blocks.{name}"] = block if rope is None else RotatedBlock(block, rope, shape)
    blocks["pool"] = as_sequential({"norm": model.norm, "tokens": TokenPooling(model, pooling)})
    return blocks


def check_patch(model: Any, size_px: int, *, backbone: str) -> None:
    """Raises ModelError for images of which the last rows and columns would fill no patch."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    side = patch[0] if isinstance(patch, tuple) else patch
    if not isinstance(side, int) or size_px % side == 0:
        return
    below = size_px // side * side
    near = f"{below} or {below + side}" if below else str(side)
    raise ModelError(
        f"augmentation.input_size_px must be a multiple of {side}, the patch of model.backbone="
        f"{backbone}, or the rest of each image would be cut off. Got {size_px}. "
        f"Set it to {near}."
    )


def say_own_pooling(model: Any) -> str:
    """Returns the name of a timm network's own pooling; empty if it is unknown."""
    for holder in (model, getattr(model, "head", None)):
        found = getattr(holder, "global_pool", None)
        kind = found if isinstance(found, str) else getattr(found, "pool_type", None)
        if kind:
            names = _TOKEN_NAMES if hasattr(model, "cls_token") else _MAP_NAMES
            return names.get(str(kind), "own")
    return ""


def _check_pooling(model: Any, pooling: str, *, backbone: str) -> None:
    own = say_own_pooling(model)
    known = [name for name in TOKEN_POOLINGS if model.cls_token is not None or "cls" not in name]
    if pooling not in known:
        raise ModelError(
            f"model.pooling must be one of {', '.join(known)} for model.backbone={backbone}, which "
            f"has tokens{'' if 'cls' in known else ', none for the class,'} and no feature map. "
            f"Got {pooling}. The network's own pooling is {own}."
        )


class TokenEmbedding(nn.Module):
    """The first part of a vision transformer: patches with positions, class and register tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # A copy without the rest: its method adds the positions, and it holds no other weights.
        part = copy.copy(model)
        part._modules = {
            name: child for name, child in model._modules.items() if name not in _AFTER_THE_TOKENS
        }
        self.model = part

    def forward(self, images: Tensor) -> Tensor:
        """Returns (B, N, F) tokens."""
        placed = self.model._pos_embed(self.model.patch_embed(images))
        # Eva returns its rotations too.
        tokens: Tensor = placed[0] if isinstance(placed, tuple) else placed
        return self.model.norm_pre(tokens)  # type: ignore[no-any-return]


class RotatedBlock(nn.Module):
    """A transformer block with the rotary positions of its network, which have no parameters."""

    def __init__(self, block: nn.Module, rope: Any, shape: tuple[int, int] | None) -> None:
        super().__init__()
        self.block, self.rope, self.shape = block, rope, shape

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns (B, N, F) tokens."""
        rotations = self.rope.get_embed(self.shape) if self.shape else self.rope.get_embed()
        moved: Tensor = self.block(tokens, rope=rotations)
        return moved


class TokenPooling(nn.Module):
    """Reduces tokens to one vector per image, with the norm that the network applies after it.

    `cls+mean` puts both vectors side by side, as evaluations of DINOv2 do, so it has twice as many
    features. `own` is the network's own pooling.
    """

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        from timm.layers.pool1d import global_pool_nlc

        self.reduce = global_pool_nlc
        self.pooling = pooling
        self.num_prefix_tokens: int = model.num_prefix_tokens
        self.own: str = model.global_pool
        self.includes_prefix: bool = getattr(model, "pool_include_prefix", False)
        self.norm: nn.Module = model.fc_norm
        self.attention: nn.Module | None = model.attn_pool if pooling == "own" else None
        # Eva's attention also sees the tokens before the patches.
        self.attends_to_all = self.includes_prefix or type(model).__name__ == "Eva"

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns (B, F), or (B, 2 F) for cls+mean."""
        if self.pooling == "cls+mean":
            both = [self.norm(self._pool(tokens, kind)) for kind in ("token", "avg")]
            return torch.cat(both, dim=1)
        kinds = {"cls": "token", "mean": "avg", "own": self.own}
        pooled: Tensor = self.norm(self._pool(tokens, kinds[self.pooling]))
        return pooled

    def _pool(self, tokens: Tensor, kind: str) -> Tensor:
        if self.attention is not None:
            seen = tokens if self.attends_to_all else tokens[:, self.num_prefix_tokens :]
            attended: Tensor = self.attention(seen)
            return attended
        pooled: Tensor = self.reduce(
            tokens,
            pool_type=kind,
            num_prefix_tokens=self.num_prefix_tokens,
            reduce_include_prefix=self.includes_prefix and self.pooling == "own",
        )
        return pooled

    def extra_repr(self) -> str:
        """Returns the kind of pooling, for printing and for fingerprints."""
        return f"{self.pooling}, own={self.own}, prefix={self.num_prefix_tokens}"


def find_map_blocks(model: Any, pooling: str, *, size_px: int) -> Blocks:
    """Returns the blocks of a network that is no vision transformer; one block if they are unknown.

    Applied in sequence, they compute the feature map (B, F, H, W). If the network has none, or if
    `pooling` is own, they compute the (B, F) features that the network pools itself.

    Args:
        model: the network as timm builds it.
        pooling: the value of model.pooling.
        size_px: side of the images.
    """
    # Another generator than that of the initial weights.
    stream = torch.Generator().manual_seed(0)
    image = torch.randn(1, 3, size_px, size_px, generator=stream)
    blocks = find_blocks(model) or find_child_blocks(model, image)
    if blocks is None:
        return {"model": TimmFeatures(model, pools=pooling == "own")}
    if pooling == "own":
        return {**blocks, "pool": TimmHead(model, blocks)}
    if getattr(model, "output_fmt", "NCHW") == "NHWC":
        return {**blocks, "permute": ChannelsFirst()}
    return blocks


class ChannelsFirst(nn.Module):
    """Turns maps of (B, H, W, F), as many transformers of timm return them, into (B, F, H, W)."""

    def forward(self, features: Tensor) -> Tensor:
        """Returns the map with its channels first."""
        return features.permute(0, 3, 1, 2)


class TimmHead(nn.Module):
    """The last part of a network, after its blocks: its own pooling, and what follows it."""

    def __init__(self, model: Any, blocks: Blocks) -> None:
        super().__init__()
        used = {id(module) for block in blocks.values() for module in block.modules()}
        part = copy.copy(model)
        # A list of blocks is not used as a module itself, but its children are.
        part._modules = {
            name: child
            for name, child in model._modules.items()
            if child is None or not any(id(module) in used for module in child.modules())
        }
        self.model = part

    def forward(self, features: Tensor) -> Tensor:
        """Returns (B, F)."""
        pooled: Tensor = self.model.forward_head(features)
        return pooled


class TimmFeatures(nn.Module):
    """A network with unknown blocks: its feature map, or the features it pools itself."""

    def __init__(self, model: Any, *, pools: bool) -> None:
        super().__init__()
        self.model, self.pools = model, pools

    def forward(self, images: Tensor) -> Tensor:
        """Returns (B, F, H, W) if the model has such a map and does not pool it, else (B, F)."""
        features: Tensor = self.model.forward_features(images)
        # Transformers return tokens (B, N, F) or maps (B, H, W, F), which timm pools itself.
        is_map = features.ndim == 4 and features.shape[1] == self.model.num_features
        if is_map and not self.pools:
            return features
        pooled: Tensor = self.model.forward_head(features)
        return pooled
