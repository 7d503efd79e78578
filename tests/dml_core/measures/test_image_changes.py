"""Tests of changed test images: occlusions and corruptions."""

import itertools
from itertools import pairwise

import numpy as np
import pytest
import torch

from dml_core.config import resolve_trial_config
from dml_core.config.image_changes import ImageChange, list_changes
from dml_core.config.trial import EvaluationConfig
from dml_core.data.inputs import plain_batches
from dml_core.measures.image_changes import AMOUNTS, ChangedInputs, change_images, occlude

KINDS = tuple(AMOUNTS)


class DrawnInputs:
    """Twelve smooth images of 24 x 24 pixels."""

    def __init__(self, channels=3):
        rows = torch.linspace(0, 6, 24)
        phases = torch.arange(12 * channels).view(12, channels, 1, 1)
        waves = torch.sin(rows[:, None] + phases) * torch.cos(1.7 * rows + 0.3 * phases)
        self.images = (127.5 * (1 + waves)).to(torch.uint8)

    def __len__(self):
        return len(self.images)

    def plain(self, indices):
        return self.images[torch.from_numpy(indices)]


def corrupt(kind, severity, *, batch_size=12, channels=3):
    inputs = ChangedInputs(DrawnInputs(channels), ImageChange("corrupted", kind, severity))
    return torch.cat([batch for _, batch in plain_batches(inputs, batch_size=batch_size)])


def distance_to_plain(kind, severity):
    return (corrupt(kind, severity).float() - DrawnInputs().images.float()).abs().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_a_corruption_depends_on_the_image_alone(kind):
    whole = corrupt(kind, 3)
    assert torch.equal(corrupt(kind, 3), whole)
    assert torch.equal(corrupt(kind, 3, batch_size=5), whole)
    other = change_images(DrawnInputs().images[4:6], np.array([4, 5]),
                          ImageChange("corrupted", kind, 3))  # fmt: skip
    assert torch.equal(other, whole[4:6])


@pytest.mark.parametrize(("kind", "channels"), itertools.product(KINDS, (1, 3)))
def test_a_corruption_keeps_shape_and_type_and_leaves_the_input_alone(kind, channels):
    inputs = DrawnInputs(channels)
    before = inputs.images.clone()
    result = corrupt(kind, 5, channels=channels)
    assert result.shape == before.shape
    assert result.dtype == torch.uint8
    assert torch.equal(inputs.images, before)
    assert not torch.equal(result, before)


@pytest.mark.parametrize("kind", KINDS)
def test_each_severity_changes_more_than_the_one_before(kind):
    changes = [distance_to_plain(kind, severity) for severity in range(1, 6)]
    assert all(less < more for less, more in pairwise(changes))
    assert all(len(amounts) == 5 for amounts in AMOUNTS.values())


@pytest.mark.parametrize("kind", ["noise", "rotation", "crop"])
def test_equal_images_are_corrupted_differently(kind):
    # Images that all turned alike would resemble each other as much as before.
    alike = DrawnInputs().images[:1].expand(3, -1, -1, -1)
    result = change_images(alike, np.arange(3), ImageChange("corrupted", kind, 3))
    assert not torch.equal(result[0], result[1])
    assert not torch.equal(result[1], result[2])


def test_noise_has_the_given_deviation():
    gray = torch.full((8, 3, 24, 24), 128, dtype=torch.uint8)
    noisy = change_images(gray, np.arange(8), ImageChange("corrupted", "noise", 2)).float()
    # Severity 2 is 0.1 of 255; values hardly ever reach the ends of the range.
    assert float(noisy.std()) == pytest.approx(25.5, rel=0.02)
    assert float(noisy.mean()) == pytest.approx(128, abs=1)


def test_the_changes_come_in_the_order_of_the_report():
    config = EvaluationConfig(occlusion=(0.25,), corruptions=("jpeg", "blur"), severities=(2, 4))
    assert [change.prefix for change in list_changes(config)] == [
        "occluded_center_0.25_", "occluded_boundary_0.25_",
        "corrupted_jpeg_2_", "corrupted_jpeg_4_", "corrupted_blur_2_", "corrupted_blur_4_",
    ]  # fmt: skip
    assert list(map(str, list_changes(config)))[1:3] == [
        "occlusion of 0.25 at the boundary", "jpeg of severity 2",
    ]  # fmt: skip
    assert list_changes(EvaluationConfig()) == []


@pytest.mark.parametrize(
    ("knob", "value", "message"),
    [
        ("evaluation.corruptions", ["fog"], "evaluation.corruptions.*'fog'"),
        ("evaluation.severities", [6], "evaluation.severities.*5.*Got 6"),
        ("evaluation.severities", [], "evaluation.severities"),
    ],
)
def test_unknown_corruptions_and_severities_are_refused(knob, value, message):
    with pytest.raises(ValueError, match=message):
        resolve_trial_config({knob: value})


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
