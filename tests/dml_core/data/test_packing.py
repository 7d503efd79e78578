"""Tests of bringing single images into their packed form."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dml_core.config.data import FolderData
from dml_core.data.packing import (
    UNREADABLE,
    PackingChoices,
    choices_of,
    digest_pixels,
    digest_record,
    pack_record,
    resize_image,
    target_size,
)
from dml_core.data.records import DatasetError, ImageRecord
from tests.references.drawn_datasets import draw_pixels

SHORTER = PackingChoices(16, "shorter", "rgb")
SQUARE = PackingChoices(16, "square", "rgb")


def file_record(file, path="x"):
    return ImageRecord(path, "class", "train", file=file)


def test_choices_come_from_the_configuration():
    choices = choices_of(FolderData(image_size_px=40, resize="square", color="gray"))
    assert choices == PackingChoices(40, "square", "gray")
    assert (choices.channels, SHORTER.channels) == (1, 3)


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(300, 200, (24, 16)), (200, 300, (16, 24)), (7, 7, (16, 16))]
)
def test_the_shorter_side_is_set_and_the_aspect_kept(height, width, expected):
    # 300 * 16 / 200 = 24
    assert target_size(height, width, SHORTER) == expected
    assert target_size(height, width, SQUARE) == (16, 16)


@settings(max_examples=100, deadline=None)
@given(height=st.integers(2, 5000), width=st.integers(2, 5000), side=st.integers(8, 512))
def test_no_packed_side_is_shorter_than_the_size(height, width, side):
    packed = target_size(height, width, PackingChoices(side, "shorter", "rgb"))
    assert min(packed) == side
    assert abs(max(packed) / side - max(height, width) / min(height, width)) <= 0.5 / side + 1e-9


def test_an_image_of_the_right_size_is_untouched():
    pixels = draw_pixels(0, 16, 20)
    assert resize_image(pixels, SHORTER) is pixels


def test_shrinking_averages_instead_of_picking_pixels():
    # Lines of black and white: picking every fourth pixel would give one of the two.
    stripes = np.zeros((64, 64, 1), dtype=np.uint8)
    stripes[:, ::2] = 255
    packed = resize_image(stripes, PackingChoices(16, "shorter", "gray"))
    assert packed.shape == (16, 16, 1)
    assert (np.abs(packed.astype(int) - 128) <= 16).all()


def test_a_file_is_hashed_decoded_and_resized(tmp_path):
    file = tmp_path / "x.png"
    Image.fromarray(draw_pixels(0, 32, 48)).save(file)
    packed = pack_record(file_record(file), root=tmp_path, choices=SHORTER)
    assert packed.pixels.shape == (16, 24, 3)
    assert packed.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert packed.digest == digest_record(file_record(file), root=tmp_path)
    assert packed.reason == ""


def test_a_damaged_file_is_refused_but_hashed(tmp_path):
    file = tmp_path / "x.png"
    file.write_bytes(b"not an image")
    packed = pack_record(file_record(file), root=tmp_path, choices=SHORTER)
    assert packed.pixels is None
    assert packed.reason.startswith("is not an image")
    assert packed.digest == hashlib.sha256(b"not an image").hexdigest()


def test_a_missing_file_is_refused_without_a_hash(tmp_path):
    packed = pack_record(file_record(tmp_path / "none"), root=tmp_path, choices=SHORTER)
    assert (packed.digest, packed.reason) == (UNREADABLE, "does not exist")
    assert digest_record(file_record(tmp_path / "none"), root=tmp_path) == UNREADABLE


def test_names_that_are_not_utf8_are_refused(tmp_path):
    file = tmp_path / "x.png"
    Image.new("L", (4, 4)).save(file)
    packed = pack_record(file_record(file, path="a\udcff"), root=tmp_path, choices=SHORTER)
    assert packed.reason == "has a name or class that is not valid UTF-8"


@pytest.mark.parametrize(("color", "channels"), [("rgb", 3), ("gray", 1)])
@pytest.mark.parametrize("is_gray", [True, False])
def test_drawn_pixels_get_the_chosen_channels(color, channels, is_gray):
    pixels = draw_pixels(0, 16, 16)[:, :, 0] if is_gray else draw_pixels(0, 16, 16)
    record = ImageRecord("x", "class", "train", pixels=pixels)
    packed = pack_record(record, root=None, choices=PackingChoices(16, "square", color))
    assert packed.pixels.shape == (16, 16, channels)
    if is_gray:
        assert (packed.pixels == pixels[:, :, None]).all()
    assert packed.digest == digest_pixels(pixels) == digest_record(record, root=None)


def test_drawn_and_stored_pixels_are_packed_alike(tmp_path):
    pixels = draw_pixels(3, 30, 20)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    stored = pack_record(file_record(tmp_path / "x.png"), root=None, choices=SHORTER)
    drawn = pack_record(
        ImageRecord("x", "class", "train", pixels=pixels), root=None, choices=SHORTER
    )
    assert np.array_equal(stored.pixels, drawn.pixels)


def test_the_digest_of_pixels_knows_their_shape():
    pixels = np.arange(12, dtype=np.uint8)
    assert digest_pixels(pixels.reshape(3, 4)) != digest_pixels(pixels.reshape(4, 3))
    strided = np.stack([pixels, pixels], axis=1)[:, 0]
    assert digest_pixels(strided) == digest_pixels(pixels)


def test_a_record_without_file_and_pixels_is_refused():
    with pytest.raises(DatasetError, match="record 'x' must have a file or pixels"):
        pack_record(ImageRecord("x", "class", "train"), root=None, choices=SHORTER)
