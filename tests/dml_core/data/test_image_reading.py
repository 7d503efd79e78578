"""Tests of reading image files."""

import os

import numpy as np
import pytest
from PIL import Image

from dml_core.data import packing
from dml_core.data.image_decoding import BadImage, decode_image
from dml_core.data.packing import read_image_bytes


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


def test_a_missing_file_and_a_broken_link_are_told_apart(photo):
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
    with pytest.raises(BadImage, match="cannot be found: embedded null byte"):
        read_image(photo.with_name("a\0b.png"), root=None, color="rgb")
