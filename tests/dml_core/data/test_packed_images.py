"""Tests of memory-mapped images."""

import numpy as np
import pytest

from dml_core.data.prepared import map_images


def write_images(folder, shapes):
    """Writes images of the given (H, W) with one channel, and maps them."""
    images = [
        np.random.default_rng(n).integers(0, 256, (*shape, 1), dtype=np.uint8)
        for n, shape in enumerate(shapes)
    ]
    file = folder / "images.bin"
    file.write_bytes(b"".join(image.tobytes() for image in images))
    lengths = [image.size for image in images]
    offsets = np.cumsum([0, *lengths[:-1]]).astype(np.int64)
    sizes = np.array(shapes, dtype=np.int64).reshape(-1, 2)
    return images, map_images(file, offsets[: len(images)], sizes, 1)


def test_images_of_any_size_are_read(tmp_path):
    images, packed = write_images(tmp_path, [(3, 4), (5, 2), (3, 4)])
    assert len(packed) == 3
    assert packed.shape is None
    assert packed.stack is None
    for index, image in enumerate(images):
        assert np.array_equal(packed.image(index), image)


def test_images_cannot_be_written_to(tmp_path):
    _, packed = write_images(tmp_path, [(3, 4), (3, 4)])
    with pytest.raises(ValueError, match="read-only"):
        packed.image(0)[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        packed.stack[0, 0, 0] = 1


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4], [1, 2, 3], [0, 2, 4], [3]])
def test_evenly_spaced_images_of_one_size_stack_without_a_copy(tmp_path, chosen):
    images, packed = write_images(tmp_path, [(3, 4)] * 5)
    selection = packed.select(np.array(chosen))
    assert np.array_equal(selection.stack, np.stack([images[index] for index in chosen]))
    assert np.shares_memory(selection.stack, packed.buffer)


@pytest.mark.parametrize("chosen", [[0, 1, 3], [2, 1, 0], [1, 1]])
def test_a_selection_that_no_view_can_describe_has_no_stack_but_can_be_gathered(tmp_path, chosen):
    images, packed = write_images(tmp_path, [(3, 4)] * 5)
    selection = packed.select(np.array(chosen))
    assert selection.stack is None
    assert selection.shape == (3, 4, 1)
    wanted = np.array([len(chosen) - 1, 0])
    gathered = selection.gather(wanted)
    assert np.array_equal(gathered, np.stack([images[chosen[index]] for index in wanted]))
    gathered[:] = 0


def test_equal_images_between_others_are_gathered(tmp_path):
    images, packed = write_images(tmp_path, [(3, 4), (5, 5), (3, 4), (2, 2)])
    selection = packed.select(np.array([2, 0]))
    assert np.array_equal(selection.gather(np.array([0, 1])), np.stack([images[2], images[0]]))


def test_gathering_images_of_several_sizes_is_a_mistake(tmp_path):
    _, packed = write_images(tmp_path, [(3, 4), (5, 5)])
    with pytest.raises(AssertionError, match="images of one size"):
        packed.gather(np.array([0, 1]))


def test_an_empty_file_has_no_images(tmp_path):
    _, packed = write_images(tmp_path, [])
    assert len(packed) == 0
    assert packed.stack is None
