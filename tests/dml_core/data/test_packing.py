"""Tests of reading and packing one image."""

import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dml_core.config.data import FolderData
from dml_core.data import packing
from dml_core.data.image_decoding import (
    BadImage,
    PackingChoices,
    decode_image,
    resize_image,
    target_size,
)
from dml_core.data.packing import (
    UNREADABLE,
    choices_of,
    digest_pixels,
    digest_record,
    pack_record,
    read_image_bytes,
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


def read_image(file, *, root, color):
    return decode_image(read_image_bytes(file, root=root), color=color)


@pytest.fixture
def photo(tmp_path):
    """A dataset's folder with one image; what else lies in tmp_path is outside of it."""
    file = tmp_path / "data" / "photo.png"
    file.parent.mkdir()
    Image.new("RGB", (6, 4), "red").save(file)
    return file


def test_a_plain_file_is_read(photo):
    pixels = read_image(photo, root=photo.parent, color="rgb")
    assert pixels.shape == (4, 6, 3)
    assert (pixels == [255, 0, 0]).all()


def test_names_in_other_scripts_are_read(photo):
    file = photo.rename(photo.with_name("Ünïcödé 写真 😀.png"))
    assert read_image(file, root=photo.parent, color="gray").shape == (4, 6, 1)


def test_bytes_are_those_of_the_file(photo):
    assert read_image_bytes(photo, root=None) == photo.read_bytes()


def test_an_empty_file_is_refused(photo):
    photo.write_bytes(b"")
    with pytest.raises(BadImage, match=r"is empty \(zero bytes\)"):
        read_image(photo, root=None, color="rgb")


def test_a_missing_file_and_a_broken_link_have_different_messages(photo):
    with pytest.raises(BadImage, match=r"^does not exist"):
        read_image(photo.with_name("none.png"), root=None, color="rgb")
    link = photo.with_name("link.png")
    link.symlink_to("none.png")
    with pytest.raises(BadImage, match="link to a file that does not exist"):
        read_image(link, root=None, color="rgb")


def test_a_circle_of_links_is_refused(photo):
    first, second = photo.with_name("a.png"), photo.with_name("b.png")
    first.symlink_to(second)
    second.symlink_to(first)
    with pytest.raises(BadImage, match=r"cannot be found: .*symbolic links"):
        read_image(first, root=None, color="rgb")


def test_a_folder_is_refused(photo):
    with pytest.raises(BadImage, match="is a folder"):
        read_image(photo.parent, root=None, color="rgb")


def test_a_name_below_a_file_is_refused(photo):
    with pytest.raises(BadImage, match="cannot be found: Not a directory"):
        read_image(photo / "x.png", root=None, color="rgb")


def test_a_pipe_is_refused_without_waiting_for_a_writer(photo):
    pipe = photo.with_name("pipe.png")
    os.mkfifo(pipe)
    with pytest.raises(BadImage, match="is a pipe, socket or device"):
        read_image(pipe, root=None, color="rgb")


def test_a_device_is_refused():
    with pytest.raises(BadImage, match="is a pipe, socket or device"):
        read_image(packing.Path("/dev/zero"), root=None, color="rgb")


def test_a_link_that_leaves_the_root_is_refused(photo, tmp_path):
    outside = tmp_path / "outside.png"
    Image.new("L", (4, 4)).save(outside)
    link = photo.with_name("link.png")
    link.symlink_to(outside)
    with pytest.raises(BadImage, match="leaves the dataset's folder through a link"):
        read_image(link, root=photo.parent, color="rgb")
    assert read_image(link, root=None, color="gray").shape == (4, 4, 1)


def test_a_linked_folder_that_leaves_the_root_is_refused(photo, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Image.new("L", (4, 4)).save(elsewhere / "x.png")
    (photo.parent / "class").symlink_to(elsewhere)
    with pytest.raises(BadImage, match="leaves the dataset's folder"):
        read_image(photo.parent / "class" / "x.png", root=photo.parent, color="rgb")


def test_a_link_inside_the_root_is_followed_also_when_the_root_is_a_link(photo, tmp_path):
    photo.with_name("link.png").symlink_to(photo.name)
    root = tmp_path / "linked_root"
    root.symlink_to(photo.parent)
    pixels = read_image(root / "link.png", root=root, color="rgb")
    assert np.array_equal(pixels, read_image(photo, root=None, color="rgb"))


def test_denied_permission_is_named(photo, monkeypatch):
    # Tests may run as root, whom no file mode stops, so the system call itself refuses.
    def deny(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(packing.os, "open", deny)
    with pytest.raises(BadImage, match="may not be read: permission denied"):
        read_image(photo, root=None, color="rgb")


def test_a_failing_disk_is_named(photo, monkeypatch):
    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(packing.os, "open", fail)
    with pytest.raises(BadImage, match="cannot be read: Input/output error"):
        read_image(photo, root=None, color="rgb")


def test_a_huge_file_is_refused_before_it_is_read(photo, monkeypatch):
    monkeypatch.setattr(packing, "MAX_FILE_BYTES", 10)
    with pytest.raises(BadImage, match=r"has \d+ bytes, above the limit of 10"):
        read_image(photo, root=None, color="rgb")


def test_a_zero_byte_in_a_name_is_refused(photo):
    # Python 3.13 words it differently from 3.11.
    with pytest.raises(BadImage, match=r"cannot be found: .*embedded null"):
        read_image(photo.with_name("a\0b.png"), root=None, color="rgb")
