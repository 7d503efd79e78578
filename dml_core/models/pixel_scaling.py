"""Turns stored pixels into what a trunk was made for."""

# B = batch, C = channels, H = height, W = width

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dml_core.models.problems import ModelError


@dataclass(frozen=True)
class PixelStatistics:
    """Mean and standard deviation of the red, green and blue channel, in units of 0 to 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_bgr: bool = False
    """Whether the trunk wants blue first; mean and std are in the trunk's order."""

    @classmethod
    def from_fractions(cls, mean: tuple[float, ...], std: tuple[float, ...]) -> "PixelStatistics":
        """Returns the statistics given in units of 0 to 1."""
        return cls(mean=tuple(255 * m for m in mean), std=tuple(255 * s for s in std))


PIXEL_STATISTICS = {
    "imagenet": PixelStatistics.from_fractions((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": PixelStatistics.from_fractions((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "caffe": PixelStatistics((103.939, 116.779, 123.68), (1.0, 1.0, 1.0), is_bgr=True),
    "unit": PixelStatistics.from_fractions((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


class PixelScaling(nn.Module):
    """Subtracts a mean from each channel and divides it by a standard deviation.

    Gray images are repeated where the trunk wants three channels. For a trunk with one channel
    the statistics are averaged over the colours.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, statistics: PixelStatistics, *, in_channels: int, out_channels: int) -> None:
        super().__init__()
        if (in_channels, out_channels) not in {(1, 1), (1, 3), (3, 3)}:
            raise ModelError(
                "images must have one channel or three, and as many as the trunk wants or one, "
                f"because only gray can be repeated. Got images of {in_channels} and a trunk of "
                f"{out_channels}. Set data.color to rgb or gray and prepare the data again."
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.flips_colors = statistics.is_bgr and out_channels == 3
        # They follow from the configuration, so a checkpoint need not carry them.
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
        # Broadcasting repeats a gray channel for each mean.
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        """Returns the numbers that the scaling uses, for printing and for fingerprints."""
        mean, std = self.mean.flatten().tolist(), self.std.flatten().tolist()
        return f"{self.in_channels}, mean={mean}, std={std}, flips_colors={self.flips_colors}"


def _as_channels(values: tuple[float, ...], num_channels: int) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.float64)
    if num_channels == 1:
        tensor = tensor.mean(dim=0, keepdim=True)
    return tensor.float().reshape(1, num_channels, 1, 1)
