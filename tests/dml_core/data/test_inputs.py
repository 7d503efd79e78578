"""Tests of the network's inputs and the loss's targets."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as transforms

from dml_core.config.data import AugmentationConfig, FolderData
from dml_core.data import inputs as cutting
from dml_core.data.inputs import (
    ImageInputs,
    compute_label_scale,
    cut_boxes,
    evaluation_boxes,
    flip_images,
    plain_batches,
    quantize,
    training_boxes,
)
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.records import ImageRecord, SourceListing
from dml_core.seeding import numpy_stream

sizes_strategy = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8
).map(np.array)


def draw(sizes, crop, size_px, seed=0, **knobs):
    config = AugmentationConfig(crop=crop, **knobs)
    stream = numpy_stream(seed, "augmentation")
    return training_boxes(np.asarray(sizes), size_px=size_px, config=config, stream=stream)


def test_central_box_of_a_wide_image():
    # 256 x 340 to 224: rows start at (256 - 224) / 2 = 16, columns at (340 - 224) / 2 = 58.
    boxes = evaluation_boxes(np.array([[256, 340]]), size_px=224, config=AugmentationConfig())
    assert boxes.tolist() == [[16, 58, 224, 224]]


def test_image_smaller_than_the_input_gives_its_central_square():
    boxes = evaluation_boxes(np.array([[100, 160]]), size_px=224, config=AugmentationConfig())
    assert boxes.tolist() == [[0, 30, 100, 100]]


def test_whole_image_where_evaluation_squeezes():
    config = AugmentationConfig(evaluation_crop="whole")
    assert evaluation_boxes(np.array([[9, 5]]), size_px=4, config=config).tolist() == [[0, 0, 9, 5]]


@settings(max_examples=100, deadline=None)
@given(
    sizes_strategy,
    st.sampled_from(["random_resized", "random", "jitter", "center"]),
    st.integers(1, 256),
    st.integers(0, 1000),
)
def test_boxes_stay_inside_their_images(sizes, crop, size_px, seed):
    boxes = draw(sizes, crop, size_px, seed)
    assert boxes.shape == (len(sizes), 4)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()


def test_random_resized_boxes_have_the_wished_area_and_aspect():
    sizes = np.full((4000, 2), 200)
    boxes = draw(sizes, "random_resized", 64, min_area=0.2, max_aspect=2.0)
    areas = boxes[:, 2] * boxes[:, 3] / 200**2
    aspects = boxes[:, 3] / boxes[:, 2]
    assert areas.min() > 0.19
    assert areas.max() > 0.9
    assert aspects.min() == pytest.approx(0.5, abs=0.05)
    assert aspects.max() == pytest.approx(2.0, abs=0.2)


def test_random_resized_boxes_are_distributed_as_torchvisions():
    image = torch.zeros(3, 150, 200)
    ours = draw(np.full((3000, 2), (150, 200)), "random_resized", 64, min_area=0.08)
    torch.manual_seed(0)
    theirs = np.array(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(3000)]
    )
    for column in range(4):
        # Both are samples of 3,000, so their means differ by chance only.
        error = np.hypot(ours[:, column].std(), theirs[:, column].std()) / np.sqrt(3000)
        assert abs(ours[:, column].mean() - theirs[:, column].mean()) < 4 * error
        assert ours[:, column].std() == pytest.approx(theirs[:, column].std(), rel=0.06)


def test_random_box_visits_every_place():
    boxes = draw(np.full((500, 2), 10), "random", 8)
    assert {tuple(box) for box in boxes[:, :2].tolist()} == {
        (r, c) for r in range(3) for c in range(3)
    }


def test_plain_probability_squeezes_its_share():
    boxes = draw(np.full((2000, 2), 10), "random", 8, plain_probability=0.5)
    share = (boxes[:, 2] == 10).mean()
    assert share == pytest.approx(0.5, abs=0.05)


def test_shift_moves_both_ways_and_may_leave_the_image():
    boxes = draw(np.full((500, 2), 10), "shift", 10, shift_px=2)
    assert sorted(set(boxes[:, 0].tolist())) == [-2, -1, 0, 1, 2]
    assert (boxes[:, 2:] == 10).all()


def test_jitter_changes_size_and_place():
    boxes = draw(np.full((500, 2), 288), "jitter", 224, size_jitter_px=12, shift_px=7)
    assert (boxes[:, 2].min(), boxes[:, 2].max()) == (212, 236)
    # Central corner of a 224 box is 32; half the size change and the shift add up to 6 + 7.
    assert boxes[:, 0].min() >= 32 - 13
    assert boxes[:, 0].max() <= 32 + 13


def make_images(root, sizes, size_px=20):
    """Prepares random colour images of the given sizes, packed with their shorter side kept."""
    chance = np.random.default_rng(0)
    records = [
        ImageRecord(
            path=f"{number % 8}/{number}",
            class_name=str(number % 8),
            role="undecided",
            pixels=chance.integers(0, 256, size=(*size, 3), dtype=np.uint8),
        )
        for number, size in enumerate(sizes)
    ]
    config = FolderData(prepared_root=str(root), image_size_px=size_px)
    prepare_dataset(SourceListing(records, root=None), config, workers=1)
    return open_development(config).train


@pytest.fixture
def equal_images(tmp_path):
    return make_images(tmp_path, [(20, 20)] * 64)


@pytest.fixture
def mixed_images(tmp_path):
    return make_images(tmp_path, [(20, 20 + number % 7) for number in range(64)])


def test_boxes_of_the_input_size_are_copied_pixel_by_pixel(equal_images):
    indices, boxes = np.array([3, 0]), np.array([[2, 5, 10, 10], [0, 0, 10, 10]])
    batch = cut_boxes(equal_images, indices, boxes, size_px=10)
    assert batch.dtype == torch.uint8
    assert batch.shape == (2, 3, 10, 10)
    expected = equal_images.image(3)[2:12, 5:15].transpose(2, 0, 1)
    assert np.array_equal(batch[0].numpy(), expected)


def test_images_of_many_sizes_give_the_same_pixels(mixed_images):
    indices = np.arange(8)
    boxes = np.tile([1, 2, 12, 12], (8, 1))
    batch = cut_boxes(mixed_images, indices, boxes, size_px=12)
    for row, index in enumerate(indices):
        expected = mixed_images.image(int(index))[1:13, 2:14].transpose(2, 0, 1)
        assert np.array_equal(batch[row].numpy(), expected)


def test_what_lies_outside_is_black(equal_images):
    batch = cut_boxes(equal_images, np.array([1]), np.array([[-3, 4, 20, 20]]), size_px=20)
    assert batch[0, :, :3].sum() == 0
    assert batch[0, :, :, 16:].sum() == 0
    expected = equal_images.image(1)[:17, 4:].transpose(2, 0, 1)
    assert np.array_equal(batch[0, :, 3:, :16].numpy(), expected)


@pytest.mark.parametrize("size_px", [4, 8, 21])
@pytest.mark.parametrize("resizes_bytes", [True, False])
def test_other_sizes_are_resized_as_torchvision_does(
    mixed_images, monkeypatch, size_px, resizes_bytes
):
    monkeypatch.setattr(cutting, "_resizes_bytes", lambda: resizes_bytes)
    boxes = np.array([[0, 1, 15, 9], [2, 0, 8, 14]])
    batch = cut_boxes(mixed_images, np.array([2, 2]), boxes, size_px=size_px)
    for row, (top, left, height, width) in zip(batch, boxes, strict=True):
        part = mixed_images.image(2)[top : top + height, left : left + width].copy()
        pixels = torch.from_numpy(part).permute(2, 0, 1)
        assert torch.equal(row, transforms.resize(pixels, [size_px, size_px], antialias=True))


def test_flip_mirrors_the_chosen_images_only():
    batch = torch.arange(2 * 3 * 2 * 2, dtype=torch.uint8).reshape(2, 3, 2, 2)
    flipped = flip_images(batch.clone(), torch.tensor([True, False]))
    assert torch.equal(flipped[0], batch[0].flip(-1))
    assert torch.equal(flipped[1], batch[1])


@pytest.mark.parametrize("crop", ["center", "random_resized", "random", "jitter", "shift"])
def test_augmentation_follows_its_stream_and_keeps_the_shape(mixed_images, crop):
    config = AugmentationConfig(crop=crop, flip="image")
    inputs = ImageInputs(mixed_images, size_px=16, config=config)
    indices = np.arange(12)
    first, again, other = (
        inputs.augmented(indices, numpy_stream(seed, "augmentation")) for seed in (0, 0, 1)
    )
    assert first.shape == (12, 3, 16, 16)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_flipping_the_batch_as_one_flips_all_or_none(equal_images):
    config = AugmentationConfig(crop="center", flip="batch")
    inputs = ImageInputs(equal_images, size_px=20, config=config)
    indices = np.arange(6)
    plain = inputs.plain(indices)
    kinds = set()
    for seed in range(20):
        batch = inputs.augmented(indices, numpy_stream(seed, "augmentation"))
        assert torch.equal(batch, plain) or torch.equal(batch, plain.flip(-1))
        kinds.add(torch.equal(batch, plain))
    assert kinds == {True, False}


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_batches_cover_all_images_in_order(mixed_images, workers):
    inputs = ImageInputs(mixed_images, size_px=16, config=AugmentationConfig())
    batches = list(plain_batches(inputs, batch_size=5, workers=workers))
    covered = np.concatenate([indices for indices, _ in batches])
    assert covered.tolist() == list(range(len(mixed_images)))
    assert torch.equal(batches[1][1], inputs.plain(np.arange(5, 10)))


def test_scale_is_the_standard_deviation():
    labels = np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    # Deviation of 0, 2, 4 is sqrt(8 / 3); a constant column keeps its unit.
    assert compute_label_scale(labels, standardize=True).tolist() == pytest.approx(
        [np.sqrt(8 / 3), 1.0]
    )
    assert compute_label_scale(labels, standardize=False).tolist() == [1.0, 1.0]


def test_no_columns_have_no_scale():
    assert compute_label_scale(np.empty((4, 0)), standardize=True).shape == (0,)


def test_bins_are_equally_wide():
    labels = np.array([[0.0], [0.9], [1.1], [2.4], [3.0]])
    classes, count = quantize(labels, bins=3)
    assert classes.tolist() == [0, 0, 1, 2, 2]
    assert count == 3


def test_cells_of_two_columns_are_numbered_without_gaps():
    labels = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.1, 0.9]])
    classes, count = quantize(labels, bins=2)
    assert count == 3
    assert classes[1] == classes[3]
    assert sorted(set(classes.tolist())) == [0, 1, 2]
