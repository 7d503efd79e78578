"""Tests of the folder that an archive's members go to."""

import io

import pytest

from dml_core.data import archives as archive_folder
from dml_core.data.archives import ArchiveFolder, SizeBudget
from dml_core.data.records import DatasetError


@pytest.fixture
def folder(tmp_path):
    """An empty folder for the members of `data.zip`."""
    place = tmp_path / "place"
    place.mkdir()
    return ArchiveFolder(tmp_path / "data.zip", place)


def test_a_member_shorter_than_announced_is_a_truncated_one(folder):
    with pytest.raises(EOFError, match="member 'a' has 3 of 5 bytes"):
        folder.add_file("a", io.BytesIO(b"123"), size=5)


def test_a_name_with_a_zero_byte_is_refused(folder):
    with pytest.raises(DatasetError, match="has a zero byte in its name"):
        folder.add_folder("a\0b")


def test_a_refusal_names_archive_member_and_reason(folder):
    text = str(folder.refusal("a/b", "is odd"))
    assert "data.zip has a member 'a/b' that is odd." in text


def test_a_hard_link_to_itself_keeps_the_file(folder, tmp_path):
    folder.add_file("a", io.BytesIO(b"123"), size=3)
    archive = tmp_path / "data.zip"
    archive.write_bytes(b"x")
    folder.add_copy("a", "a", budget=SizeBudget(archive, folder.place))
    assert (folder.place / "a").read_bytes() == b"123"


def test_the_budget_grows_with_the_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_folder, "SMALL_BYTES", 10)
    archive = tmp_path / "data.zip"
    archive.write_bytes(b"12345")
    budget = SizeBudget(archive, tmp_path)
    budget.count_bytes(500)  # a hundred times five bytes are allowed
    with pytest.raises(DatasetError, match="unpacks to more than 500 bytes"):
        budget.count_bytes(1)
