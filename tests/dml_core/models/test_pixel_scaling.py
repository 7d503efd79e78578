"""From stored pixels to a trunk's input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.models.blocks import ModelError
from dml_core.models.embedding_model import PIXEL_STATISTICS, PixelScaling, PixelStatistics


def one_pixel(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(1, -1, 1, 1)


def scale(kind: str, *values: int) -> list[float]:
    scaling = PixelScaling(
        PIXEL_STATISTICS[kind], in_channels=len(values), out_channels=len(values)
    )
    return scaling(one_pixel(*values)).flatten().tolist()


def test_imagenet_scaling_has_a_worked_value():
    # red 255: (1 - 0.485) / 0.229 = 2.2489; green 0: -0.456 / 0.224 = -2.0357;
    # blue 51 = 0.2: (0.2 - 0.406) / 0.225 = -0.9156
    assert scale("imagenet", 255, 0, 51) == pytest.approx([2.2489, -2.0357, -0.9156], abs=1e-4)


def test_half_scaling_runs_from_minus_one_to_one():
    assert scale("half", 0, 255, 51) == pytest.approx([-1.0, 1.0, -0.6])


def test_unit_scaling_runs_from_zero_to_one():
    assert scale("unit", 0, 255, 51) == pytest.approx([0.0, 1.0, 0.2])


def test_caffe_scaling_puts_blue_first_and_subtracts_the_mean():
    # blue 30 - 103.939, green 20 - 116.779, red 10 - 123.68
    assert scale("caffe", 10, 20, 30) == pytest.approx([-73.939, -96.779, -113.68], abs=1e-3)


def test_gray_is_repeated_for_a_trunk_of_three_channels():
    scaling = PixelScaling(PIXEL_STATISTICS["imagenet"], in_channels=1, out_channels=3)
    repeated = scale("imagenet", 77, 77, 77)
    assert scaling(one_pixel(77)).flatten().tolist() == pytest.approx(repeated)


def test_gray_trunk_gets_the_average_statistics():
    # caffe: (103.939 + 116.779 + 123.68) / 3 = 114.7993
    assert scale("caffe", 100) == pytest.approx([-14.7993], abs=1e-3)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 255), st.sampled_from(sorted(PIXEL_STATISTICS)))
def test_float_images_scale_as_their_integers(value, kind):
    scaling = PixelScaling(PIXEL_STATISTICS[kind], in_channels=3, out_channels=3)
    pixel = one_pixel(value, 0, 255)
    assert torch.equal(scaling(pixel), scaling(pixel.float()))


def test_statistics_from_fractions_are_in_pixel_units():
    statistics = PixelStatistics.from_fractions((0.5, 0.2, 0.0), (1.0, 0.4, 0.2))
    assert statistics.mean == pytest.approx((127.5, 51.0, 0.0))
    assert statistics.std == pytest.approx((255.0, 102.0, 51.0))


def test_scaling_keeps_channels_last():
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=3, out_channels=3)
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8).to(memory_format=torch.channels_last)
    assert scaling(images).is_contiguous(memory_format=torch.channels_last)


def test_scaling_follows_the_dtype_of_its_module():
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=1, out_channels=1).double()
    assert scaling(one_pixel(3)).dtype == torch.float64


def test_scaling_adds_nothing_to_a_checkpoint():
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=1, out_channels=3)
    assert scaling.state_dict() == {}


@pytest.mark.parametrize("channels", [(3, 1), (2, 3), (4, 4)])
def test_scaling_refuses_channels_that_it_cannot_match(channels):
    with pytest.raises(ModelError, match=f"images of {channels[0]} and a trunk of {channels[1]}"):
        PixelScaling(PIXEL_STATISTICS["half"], in_channels=channels[0], out_channels=channels[1])


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (3, 8, 8)])
def test_scaling_refuses_images_of_another_shape(shape):
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=3, out_channels=3)
    with pytest.raises(ModelError, match=r"\(B, 3, H, W\).*Got \(" + str(shape[0])):
        scaling(torch.zeros(shape))
