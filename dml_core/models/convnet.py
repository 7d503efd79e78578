"""A small convolutional trunk for CPU work on small images."""

from collections import OrderedDict

from torch import nn


def build_convnet(*, in_channels: int, width: int) -> nn.Sequential:
    """Returns three stages with `width`, `2 * width` and `4 * width` channels.

    (B, in_channels, H, W) becomes (B, 4 * width, H // 4, W // 4), so images need 4 pixels a side;
    below 16 little is left to pool.
    """
    return nn.Sequential(
        OrderedDict(
            stage1=_build_stage(in_channels, width, halves=True),
            stage2=_build_stage(width, 2 * width, halves=True),
            stage3=_build_stage(2 * width, 4 * width, halves=False),
        )
    )


def _build_stage(in_channels: int, out_channels: int, *, halves: bool) -> nn.Sequential:
    # Batch norm subtracts the mean, so a bias of the convolution would change nothing.
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
    layers: list[nn.Module] = [convolution, nn.BatchNorm2d(out_channels)]
    if halves:
        # ReLU is monotone, so the maximum may come first; ReLU then sees a quarter of the values.
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.ReLU(inplace=True))
