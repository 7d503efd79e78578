"""Centre and boundary hide the same share of an image and nothing else."""

from itertools import pairwise

import pytest
import torch

from dml_core.measures.model_scores import occlude


def covered_map(height, width, **knobs):
    """(H, W) True where a white image turned black."""
    return occlude(torch.ones(1, 1, height, width), **knobs)[0, 0] == 0


def test_the_center_covers_the_central_square():
    # Half of 8 pixels: rows and columns 2 to 5.
    covered = covered_map(8, 8, size=0.5, place="center")
    assert covered[2:6, 2:6].all()
    assert covered.sum() == 16


def test_the_boundary_covers_a_frame_of_the_same_area():
    # size 0.6 of 10 pixels: 36 covered at the centre; the frame leaves sqrt(1 - 0.36) = 0.8
    # of each side open, 64 pixels, and covers the same 36.
    covered = covered_map(10, 10, size=0.6, place="boundary")
    assert not covered[1:9, 1:9].any()
    assert covered.sum() == 36
    assert covered_map(10, 10, size=0.6, place="center").sum() == 36


@pytest.mark.parametrize("size", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_both_places_hide_the_same_share_to_the_nearest_row(size):
    center = covered_map(224, 224, size=size, place="center").float().mean()
    boundary = covered_map(224, 224, size=size, place="boundary").float().mean()
    # One row and one column of 224 more or less, half of which is rounded away.
    assert abs(center - size**2) < 1 / 224
    assert abs(boundary - size**2) < 1 / 224


@pytest.mark.parametrize("place", ["center", "boundary"])
def test_a_larger_size_covers_all_that_a_smaller_one_does(place):
    maps = [covered_map(32, 32, size=step / 10, place=place) for step in range(11)]
    for smaller, larger in pairwise(maps):
        assert (larger | ~smaller).all()
    assert not maps[0].any()
    assert maps[-1].all()


def test_images_that_are_not_square_are_covered_by_shares_of_each_side():
    covered = covered_map(4, 8, size=0.5, place="center")
    assert covered[1:3, 2:6].all()
    assert covered.sum() == 8


def test_the_input_stays_and_the_rest_of_the_image_too():
    images = torch.rand(3, 2, 6, 6)
    before = images.clone()
    result = occlude(images, size=0.5, place="center", fill=-2.0)
    assert torch.equal(images, before)
    covered = covered_map(6, 6, size=0.5, place="center")
    assert (result[..., covered] == -2).all()
    assert torch.equal(result[..., ~covered], images[..., ~covered])
    nothing = occlude(images, size=0.0, place="boundary")
    nothing[:] = 9
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_is_kept(dtype):
    result = occlude(torch.ones(1, 3, 4, 4, dtype=dtype), size=0.5, place="center")
    assert result.dtype == dtype
    assert result.float().mean() == 0.75


def test_each_channel_may_have_its_own_black():
    fill = torch.tensor([-2.1, -2.0, -1.8]).view(3, 1, 1)
    result = occlude(torch.zeros(2, 3, 4, 4), size=1.0, place="center", fill=fill)
    assert torch.equal(result, fill.expand(2, 3, 4, 4))


@pytest.mark.parametrize("size", [-0.1, 1.5, float("nan")])
def test_a_size_outside_of_zero_to_one_is_refused(size):
    with pytest.raises(ValueError, match=f"Got {size}"):
        occlude(torch.ones(1, 1, 4, 4), size=size, place="center")


def test_an_unknown_place_is_refused():
    with pytest.raises(ValueError, match="Got 'corner'"):
        occlude(torch.ones(1, 1, 4, 4), size=0.5, place="corner")
