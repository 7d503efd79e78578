"""The small trunk for CPU work."""

import pytest
import torch
from torch import nn

from dml_core.models.building import build_convnet


def test_convnet_has_three_blocks_of_doubling_channels():
    convnet = build_convnet(in_channels=1, width=8)
    assert list(dict(convnet.named_children())) == ["stage1", "stage2", "stage3"]
    channels = [m.out_channels for m in convnet.modules() if isinstance(m, nn.Conv2d)]
    assert channels == [8, 16, 32]


# Two blocks halve the side, rounding down: 16 -> 8 -> 4, 28 -> 14 -> 7, 35 -> 17 -> 8.
@pytest.mark.parametrize(("side_px", "left_px"), [(16, 4), (28, 7), (35, 8)])
def test_convnet_quarters_the_side(side_px, left_px):
    convnet = build_convnet(in_channels=3, width=4)
    features = convnet(torch.zeros(2, 3, side_px, side_px))
    assert features.shape == (2, 16, left_px, left_px)


def test_block_equals_convolution_batch_norm_relu_and_then_maximum():
    torch.manual_seed(0)
    block = build_convnet(in_channels=2, width=4).stage1
    convolution, batch_norm = block[0], block[1]
    nn.init.normal_(batch_norm.weight)  # Negative weights too, where order could matter.
    images = torch.randn(3, 2, 16, 16)
    expected = nn.functional.max_pool2d(torch.relu(batch_norm(convolution(images))), 2)
    assert torch.equal(block(images), expected)
