import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as transforms

from dml_core.config.data import AugmentationConfig, FolderData
from dml_core.data import inputs as cutting
from dml_core.data.inputs import ImageInputs, cut_boxes, flip_images, plain_batches
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.records import ImageRecord, SourceListing
from dml_core.seeding import numpy_stream


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
