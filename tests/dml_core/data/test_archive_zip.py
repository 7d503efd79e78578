"""Tests of unpacking zip archives with members that try to get out."""

import os
import stat
import zipfile

import pytest

from dml_core.data.archives import extract_archive
from dml_core.data.records import DatasetError


def write_zip(folder, *names, mode=0):
    archive = folder / "data.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            packed.writestr(info, b"target")
    return archive


@pytest.mark.parametrize(
    "name", ["../out", "a/../../out", "/tmp/dml_escaped", "..\\out", "C:\\out"]
)
def test_names_that_leave_the_target_are_refused(tmp_path, name):
    archive = write_zip(tmp_path, "good", name)
    with pytest.raises(DatasetError, match=r"climbs out|absolute path") as caught:
        extract_archive(archive, tmp_path / "inner" / "out")
    assert repr(name) in str(caught.value)
    assert os.listdir(tmp_path / "inner") == []
    assert sorted(os.listdir(tmp_path)) == ["data.zip", "inner"]


@pytest.mark.parametrize(
    ("kind", "reason"), [(stat.S_IFLNK, "'x' that is a link"), (stat.S_IFIFO, "'x' that is a dev")]
)
def test_links_and_special_files_are_refused(tmp_path, kind, reason):
    archive = write_zip(tmp_path, "x", mode=kind | 0o777)
    with pytest.raises(DatasetError, match=reason):
        extract_archive(archive, tmp_path / "out")


def test_encrypted_members_are_refused(tmp_path):
    archive = write_zip(tmp_path, "x")
    content = bytearray(archive.read_bytes())
    # The flags' lowest bit, in the central directory's entry, says that the member is encrypted.
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(DatasetError, match="'x' that is encrypted"):
        extract_archive(archive, tmp_path / "out")


def test_folders_and_regular_modes_are_unpacked(tmp_path):
    out = extract_archive(write_zip(tmp_path, "a/", "a/b", mode=0o100644), tmp_path / "out")
    assert (out / "a" / "b").read_bytes() == b"target"


def test_backslashes_are_folders_as_windows_writes_them(tmp_path):
    out = extract_archive(write_zip(tmp_path, "a\\b"), tmp_path / "out")
    assert (out / "a" / "b").read_bytes() == b"target"
