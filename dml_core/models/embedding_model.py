"""The embedding model: pixel scaling, frozen blocks, a trunk that learns, and a head."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dml_core.models.blocks import ModelError
from dml_core.models.lora import MARK, merge_lora

# B = batch, C = channels, H = height, W = width


@dataclass(frozen=True)
class PixelStatistics:
    """Mean and standard deviation of each channel, in units of 0 to 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_bgr: bool = False
    """Whether the trunk expects BGR; mean and std are in the trunk's order."""

    @classmethod
    def from_fractions(cls, mean: tuple[float, ...], std: tuple[float, ...]) -> "PixelStatistics":
        """Converts statistics in units of 0 to 1."""
        return cls(mean=tuple(255 * m for m in mean), std=tuple(255 * s for s in std))


PIXEL_STATISTICS = {
    "imagenet": PixelStatistics.from_fractions((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": PixelStatistics.from_fractions((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "caffe": PixelStatistics((103.939, 116.779, 123.68), (1.0, 1.0, 1.0), is_bgr=True),
    "unit": PixelStatistics.from_fractions((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


class PixelScaling(nn.Module):
    """Subtracts the mean of each channel and divides by its standard deviation.

    Gray images are repeated if the trunk expects three channels. For a trunk with one channel the
    statistics are averaged over the colors.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, statistics: PixelStatistics, *, in_channels: int, out_channels: int) -> None:
        super().__init__()
        if (in_channels, out_channels) not in {(1, 1), (1, 3), (3, 3)}:
            raise ModelError(
                "images must have one channel, or three if the trunk has three, because only gray "
                f"can be repeated. Got images of {in_channels} and a trunk of {out_channels}. "
                "Set data.color to rgb or gray and prepare the data again."
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.flips_colors = statistics.is_bgr and out_channels == 3
        # The configuration determines them, so checkpoints do not store them.
        self.register_buffer("mean", _as_channels(statistics.mean, out_channels), persistent=False)
        self.register_buffer("std", _as_channels(statistics.std, out_channels), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Returns (B, out_channels, H, W) floats for uint8 or float images from 0 to 255."""
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ModelError(
                f"images must have the shape (B, {self.in_channels}, H, W), because the model was "
                f"built for {self.in_channels} channel(s). Got {tuple(images.shape)}."
            )
        images = images.to(self.mean.dtype)
        if self.flips_colors:
            images = images.flip(1)
        # Broadcasting repeats a gray channel.
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        """Returns the statistics, for printing and for fingerprints."""
        mean, std = self.mean.flatten().tolist(), self.std.flatten().tolist()
        return f"{self.in_channels}, mean={mean}, std={std}, flips_colors={self.flips_colors}"


def _as_channels(values: tuple[float, ...], num_channels: int) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.float64)
    if num_channels == 1:
        tensor = tensor.mean(dim=0, keepdim=True)
    return tensor.float().reshape(1, num_channels, 1, 1)


# B = batch, F = features, D = embedding dim, H = height, W = width


MAP_POOLINGS = ("avg", "max", "avg+max")
Projection = Literal["linear", "linear_no_bias", "none"]


class GlobalPooling(nn.Module):
    """Reduces a feature map to one number per channel; a vector passes unchanged.

    Networks that pool themselves return vectors; model.pooling then names the pooling of the trunk.
    """

    def __init__(self, pooling: str) -> None:
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
    """Pooling, then optional layer norm, projection and L2 normalization.

    The layer norm has no affine parameters. The projection is initialized with Kaiming normal
    weights (fan out) and zero bias.
    """

    def __init__(
        self,
        *,
        num_features: int,
        embedding_dim: int,
        pooling: str,
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
        # Under autocast the projection returns half precision, which is too coarse for distances.
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        return l2_normalize(embeddings) if self.normalize else embeddings


def l2_normalize(embeddings: Tensor) -> Tensor:
    """Returns (B, D) vectors of unit length; a zero vector stays zero."""
    # Adding 1e-12 under the root keeps the gradient of a zero vector finite (Kim et al., 2020).
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
            "model.projection=none uses the pooled feature as the embedding, so "
            f"model.embedding_dim must be the trunk's {num_features} channels. "
            f"Got model.embedding_dim={embedding_dim}. Set it to {num_features}, or set "
            "model.projection to linear."
        )


# B = batch, C = channels, D = embedding dim, H = height, W = width


class EmbeddingModel(nn.Module):
    """Pixel scaling, frozen blocks, blocks that learn, and a head.

    The output of the frozen blocks is constant for each image, so it can be cached:
    `forward(images)` equals `forward_from(frozen_activations(images))`.
    """

    def __init__(
        self,
        *,
        scaling: PixelScaling,
        frozen: nn.Sequential,
        trunk: nn.Sequential,
        head: EmbeddingHead,
        is_adapted: bool = False,
    ) -> None:
        """Takes the parts; `is_adapted` says that only the low-rank factors of the trunk learn."""
        super().__init__()
        self.is_adapted = is_adapted
        self.scaling = scaling
        self.frozen = frozen.requires_grad_(False)
        self.trunk = trunk
        self.head = head
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Returns (B, D) embeddings of (B, C, H, W) images, uint8 or float from 0 to 255."""
        return self.forward_from(self.frozen_activations(images))

    def frozen_activations(self, images: Tensor) -> Tensor:
        """Returns the output of the frozen blocks for (B, C, H, W) images, without a graph.

        This is the feature map at the cut, the pooled vector if the whole trunk is frozen, or the
        scaled pixels if nothing is frozen.
        """
        with torch.no_grad():
            activations: Tensor = self.frozen(self.scaling(images))
        return activations

    def forward_from(self, activations: Tensor) -> Tensor:
        """Returns (B, D) embeddings of cached activations, which may be in half precision."""
        features: Tensor = self.head(self.trunk(activations.to(self.scaling.mean.dtype)))
        return features

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns the parameters that learn, of the `trunk` and of the `head`.

        The trunk is included during warm-up too; frozen blocks and the weights beside low-rank
        factors never are.
        """
        trunk = [p for name, p in self.trunk.named_parameters() if self._learns(name)]
        return {"trunk": trunk, "head": list(self.head.parameters())}

    def _learns(self, name: str) -> bool:
        return not self.is_adapted or MARK in name

    def train(self, mode: bool = True) -> Self:
        """Sets training or evaluation mode; frozen blocks stay in evaluation mode."""
        self.training = mode
        for part in (self.scaling, self.trunk, self.head):
            part.train(mode)
        # Visiting the hundreds of layers of a frozen trunk takes longer than training a head for
        # an epoch.
        if self.frozen.training:
            self.frozen.eval()
        return self

    def set_training(self, mode: bool, *, freeze_batch_norm: bool) -> None:
        """Sets the mode; freeze_batch_norm keeps the trunk's running statistics unchanged.

        A batch norm with frozen statistics still learns its weight and bias. Beside low-rank
        factors the statistics are always frozen, as is all else of the network.
        """
        self.train(mode)
        if freeze_batch_norm or self.is_adapted:
            for module in self.trunk.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()

    def learned_state(self, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Returns the part of `state_dict` that training may change, added to `state`."""
        state = OrderedDict() if state is None else state
        if self.is_adapted:
            trunk = self.trunk.state_dict(prefix="trunk.")
            state.update((name, tensor) for name, tensor in trunk.items() if self._learns(name))
        else:
            self.trunk.state_dict(destination=state, prefix="trunk.")
        self.head.state_dict(destination=state, prefix="head.")
        return state

    def constant_state(self) -> dict[str, Tensor]:
        """Returns the part of `state_dict` that training never changes."""
        state: dict[str, Tensor] = self.frozen.state_dict(prefix="frozen.")
        if self.is_adapted:
            trunk = self.trunk.state_dict(prefix="trunk.")
            state.update((n, tensor) for n, tensor in trunk.items() if not self._learns(n))
        return state

    def merge_adapters(self) -> None:
        """Adds learned low-rank factors to the weights of the trunk, which is then a plain one."""
        if self.is_adapted:
            merge_lora(self.trunk)
            self.is_adapted = False

    def frozen_fingerprint(self) -> str:
        """Returns a hash of everything that determines the frozen activations.

        It covers the pixel scaling, the frozen layers and the bytes of their tensors.
        """
        digest = hashlib.sha256(f"{self.scaling}\n{self.frozen}".encode())
        for name, tensor in self.frozen.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def place_model(
    model: EmbeddingModel, *, device: torch.device, channels_last: bool
) -> EmbeddingModel:
    """Moves the model to the device and memory format, and returns it."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(device)
    model.to(memory_format=layout)
    return model
