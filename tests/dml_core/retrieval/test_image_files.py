import os

import pytest
from PIL import Image

from dml_core.retrieval.image_files import (
    FolderError,
    explain_unreadable,
    list_image_files,
    resolve_folder,
)

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0"
AVIF = b"\0\0\0\x18ftypavif\0\0\0\0"


def write(path, content=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_images_are_found_at_every_depth_and_other_files_are_counted(tmp_path):
    for name in ("a.JPG", "deep/er/b.webp", "deep/c.heic", ".hidden.png", ".git/d.png", "e.txt"):
        write(tmp_path / name)
    write(tmp_path / "noend")
    found = list_image_files(tmp_path)
    assert list(found.files) == ["a.JPG", "deep/c.heic", "deep/er/b.webp"]
    assert found.ignored == {".txt": 1, "no ending": 1}
    assert found.files["a.JPG"].size == 1


def test_links_to_folders_are_named_and_not_followed(tmp_path):
    write(tmp_path / "images" / "a.png")
    os.symlink(tmp_path, tmp_path / "images" / "up")
    os.symlink(tmp_path / "images" / "a.png", tmp_path / "images" / "b.png")
    os.symlink(tmp_path / "gone.png", tmp_path / "images" / "c.png")
    found = list_image_files(tmp_path / "images")
    assert list(found.files) == ["a.png", "b.png"]
    assert found.links == ("up",)


def test_a_name_that_is_not_utf8_is_found(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(b"x")
    assert list(list_image_files(tmp_path).files) == [os.fsdecode(b"\xff.png")]


def test_a_folder_that_cannot_be_used_is_named_with_the_reason(tmp_path):
    with pytest.raises(FolderError, match=r"nowhere does not exist"):
        resolve_folder(tmp_path / "nowhere")
    write(tmp_path / "picture.png")
    with pytest.raises(FolderError, match=r"picture\.png must be a folder"):
        resolve_folder(tmp_path / "picture.png")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with pytest.raises(FolderError, match=r"loop cannot be followed"):
        resolve_folder(tmp_path / "loop")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match=r"empty has no image files .*It is empty"):
        list_image_files(tmp_path / "empty")
    write(tmp_path / "texts" / "a.txt")
    with pytest.raises(FolderError, match=r"It has 1 other files"):
        list_image_files(tmp_path / "texts")


@pytest.mark.parametrize(
    ("content", "expected"),
    [(HEIC, "is a HEIC image, which"), (AVIF, "is an AVIF image that"), (b"GIF89a", "unknown")],
)
def test_formats_of_phones_are_named_with_the_remedy(tmp_path, content, expected):
    write(tmp_path / "photo", content)
    explained = explain_unreadable(tmp_path / "photo", "unknown")
    assert explained.startswith(expected)
    assert ("convert it to JPEG" in explained) == (expected != "unknown")
    assert explain_unreadable(tmp_path / "gone", "unknown") == "unknown"


def test_an_image_keeps_its_stamp_until_it_changes(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    before = list_image_files(tmp_path).files["a.png"]
    assert list_image_files(tmp_path).files["a.png"] == before
    os.utime(tmp_path / "a.png", ns=(1, before.modified_ns + 1))
    assert list_image_files(tmp_path).files["a.png"] != before
