"""A user's own folders are read."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError, SourceListing
from dml_core.data.sources.folder import list_folder


def _tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def _list(raw: Path, **knobs: object) -> SourceListing:
    return list_folder(FolderData(raw=str(raw), **knobs))


def _pairs(listing: SourceListing) -> list[tuple[str, str]]:
    return [(record.path, record.class_name) for record in listing.records]


def test_the_first_folder_level_is_the_class(tmp_path: Path):
    _tree(tmp_path, "dog/b.PNG", "cat/2012/deep/a.jpeg", "cat/a.webp")
    listing = _list(tmp_path)
    assert _pairs(listing) == [
        ("cat/2012/deep/a.jpeg", "cat"),
        ("cat/a.webp", "cat"),
        ("dog/b.PNG", "dog"),
    ]
    assert {record.role for record in listing.records} == {"undecided"}
    assert all(record.file.is_file() for record in listing.records)


def test_hidden_files_and_other_files_are_left_out_and_the_latter_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    _tree(tmp_path, "cat/a.jpg", "cat/._a.jpg", ".git/b.jpg", "__MACOSX/cat/a.jpg", "dog/b.jpg")
    _tree(tmp_path, "readme.txt", "cat/notes.txt", "dog/list")
    with caplog.at_level(logging.WARNING):
        listing = _list(tmp_path)
    assert _pairs(listing) == [("cat/a.jpg", "cat"), ("dog/b.jpg", "dog")]
    assert "ignored 3 file(s) that are not images: .txt (2), no suffix (1)" in caplog.text


@pytest.mark.parametrize("name", ["<script>", "=SUM(A1)", "猫 с", "a;b,c", "it's"])
def test_any_class_name_is_kept_as_it_is(tmp_path: Path, name: str):
    _tree(tmp_path, f"{name}/a.jpg", "other/b.jpg")
    assert (f"{name}/a.jpg", name) in _pairs(_list(tmp_path))


@pytest.mark.parametrize("points_to", ["archive", "folder", "around"])
def test_archives_and_lone_folders_around_the_classes_are_passed(tmp_path: Path, points_to: str):
    _tree(tmp_path / "original", "set/cat/a.jpg", "set/dog/b.jpg")
    (tmp_path / "raw").mkdir()
    archive = shutil.make_archive(str(tmp_path / "raw" / "set"), "zip", tmp_path / "original")
    raw = {"archive": Path(archive), "folder": tmp_path / "raw", "around": tmp_path / "original"}
    listing = _list(raw[points_to])
    assert _pairs(listing) == [("cat/a.jpg", "cat"), ("dog/b.jpg", "dog")]
    assert listing.root.name == "set"


def test_a_lone_class_is_not_taken_for_a_folder_around_classes(tmp_path: Path):
    _tree(tmp_path, "cat/a.jpg")
    assert _pairs(_list(tmp_path)) == [("cat/a.jpg", "cat")]


def test_images_outside_of_class_folders_are_named(tmp_path: Path):
    _tree(tmp_path, "cat/a.jpg", "montage.jpg")
    with pytest.raises(DatasetError, match=r"montage\.jpg is not in a class folder"):
        _list(tmp_path)


def test_a_folder_without_images_is_refused(tmp_path: Path):
    _tree(tmp_path, "cat/a.txt")
    with pytest.raises(DatasetError, match="must hold images in one folder per class, found none"):
        _list(tmp_path)


def test_a_linked_folder_is_refused(tmp_path: Path):
    _tree(tmp_path / "elsewhere", "a.jpg")
    _tree(tmp_path / "raw", "cat/a.jpg")
    (tmp_path / "raw" / "dog").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="raw/dog is a link to a folder"):
        _list(tmp_path / "raw")


def test_data_raw_itself_may_be_a_link(tmp_path: Path):
    _tree(tmp_path / "disk", "cat/a.jpg", "dog/b.jpg")
    (tmp_path / "raw").symlink_to(tmp_path / "disk")
    listing = _list(tmp_path / "raw")
    assert listing.root == (tmp_path / "disk").resolve()
    assert all(record.file.resolve().is_relative_to(listing.root) for record in listing.records)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path):
    _tree(tmp_path, "cat/a.jpg")
    with open(os.fsencode(tmp_path) + b"/cat/caf\xe9.jpg", "wb"):
        pass
    with pytest.raises(DatasetError, match="a name that is not UTF-8"):
        _list(tmp_path)


def test_continuous_labels_need_a_table(tmp_path: Path):
    _tree(tmp_path, "cat/a.jpg")
    with pytest.raises(DatasetError, match=r"Got age and no table. Set data.table"):
        _list(tmp_path, continuous_labels=("age",))


def test_a_table_inside_an_archive_is_found(tmp_path: Path):
    _tree(tmp_path / "original", "set/a.jpg")
    (tmp_path / "original/set/table.csv").write_text("path,class\na.jpg,x\n")
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "original")
    assert _pairs(_list(Path(archive), table="table.csv")) == [("a.jpg", "x")]


def test_a_table_that_is_not_there_is_named(tmp_path: Path):
    _tree(tmp_path, "cat/a.jpg")
    with pytest.raises(DatasetError, match=r"labels\.csv cannot be found"):
        _list(tmp_path, table="labels.csv")


@pytest.mark.parametrize("table", ["../table.csv", "/etc/table.csv"])
def test_a_table_outside_of_the_folder_is_refused(tmp_path: Path, table: str):
    _tree(tmp_path, "cat/a.jpg")
    with pytest.raises(DatasetError, match=f"must be relative to data.raw .*Got '{table}'"):
        _list(tmp_path, table=table)


def test_an_absent_folder_is_named(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"'folder' is missing at .*gone"):
        _list(tmp_path / "gone")
