"""The network that is trained: pixels in, embeddings out."""

# B = batch, C = channels, D = embedding dim, H = height, W = width

import hashlib
from collections import OrderedDict
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dml_core.models.head import EmbeddingHead
from dml_core.models.pixel_scaling import PixelScaling


class EmbeddingModel(nn.Module):
    """Pixel scaling, frozen stages, stages that learn, and a head.

    What comes before the stages that learn is the same for an image whenever it is computed, so
    it may be kept: `forward(images)` is `forward_from(frozen_activations(images))`.
    """

    def __init__(
        self,
        *,
        scaling: PixelScaling,
        frozen: nn.Sequential,
        trunk: nn.Sequential,
        head: EmbeddingHead,
    ) -> None:
        super().__init__()
        self.scaling = scaling
        self.frozen = frozen.requires_grad_(False)
        self.trunk = trunk
        self.head = head
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Returns (B, D) embeddings of (B, C, H, W) images, uint8 or float from 0 to 255."""
        return self.forward_from(self.frozen_activations(images))

    def frozen_activations(self, images: Tensor) -> Tensor:
        """Returns what the frozen stages make of (B, C, H, W) images, without a graph.

        A feature map at the cut; the pooled vector where the whole trunk stands still; the scaled
        pixels where nothing does.
        """
        with torch.no_grad():
            activations: Tensor = self.frozen(self.scaling(images))
        return activations

    def forward_from(self, activations: Tensor) -> Tensor:
        """Returns (B, D) embeddings of kept activations, which may be in half precision."""
        features: Tensor = self.head(self.trunk(activations.to(self.scaling.mean.dtype)))
        return features

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns the parameters that learn, of the `trunk` and of the `head`.

        The trunk's are listed also while a warm-up holds them still; frozen stages never are.
        """
        return {"trunk": list(self.trunk.parameters()), "head": list(self.head.parameters())}

    def train(self, mode: bool = True) -> Self:
        """Sets training or evaluation mode, but for the frozen stages, which only evaluate."""
        self.training = mode
        for part in (self.scaling, self.trunk, self.head):
            part.train(mode)
        # Walking through the hundreds of layers of a frozen trunk takes longer than to train a
        # head for an epoch.
        if self.frozen.training:
            self.frozen.eval()
        return self

    def set_training(self, mode: bool, *, freeze_batch_norm: bool) -> None:
        """Sets the mode; freeze_batch_norm keeps the trunk's running statistics as they are.

        A batch norm with frozen statistics still learns its weight and bias.
        """
        self.train(mode)
        if freeze_batch_norm:
            for module in self.trunk.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()

    def learned_state(self, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Returns the part of `state_dict` that training may move, added to another part's."""
        state = OrderedDict() if state is None else state
        self.trunk.state_dict(destination=state, prefix="trunk.")
        self.head.state_dict(destination=state, prefix="head.")
        return state

    def frozen_fingerprint(self) -> str:
        """Returns a hash that changes with anything that changes the frozen activations.

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
    """Moves the model and returns it; feature maps take their layout from the first weights."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(device)
    model.to(memory_format=layout)
    return model
