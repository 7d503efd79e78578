"""Tests of unpacking archives as a whole."""

import io
import os
import tarfile
import zipfile

import pytest

from dml_core.data import archives as archive_folder
from dml_core.data.archives import MARKER, extract_archive
from dml_core.data.records import DatasetError

CONTENT = {"data/a.txt": b"first", "data/deep/ü.bin": bytes(range(256)) * 40}
TAR_MODES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.bz2": "w:bz2"}
SUFFIXES = [*TAR_MODES, ".zip"]


def pack(folder, suffix, content=CONTENT):
    archive = folder / f"data{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, data in content.items():
                packed.writestr(name, data)
        return archive
    with tarfile.open(archive, TAR_MODES[suffix]) as packed:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return archive


def read_tree(folder):
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != MARKER)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_is_unpacked(tmp_path, suffix):
    target = tmp_path / "out" / "unpacked"
    assert extract_archive(pack(tmp_path, suffix), target) == target
    assert read_tree(target) == CONTENT
    assert os.listdir(target.parent) == ["unpacked"]


def test_the_kind_of_compression_is_read_from_the_content(tmp_path):
    archive = pack(tmp_path, ".tar").rename(tmp_path / "renamed.tgz")
    assert read_tree(extract_archive(archive, tmp_path / "out")) == CONTENT


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_complete_extraction_is_used_again_and_a_new_archive_replaces_it(tmp_path, suffix):
    archive, target = pack(tmp_path, suffix), tmp_path / "out"
    extract_archive(archive, target)
    (target / "trace").write_text("made since")
    extract_archive(archive, target)
    assert (target / "trace").exists()
    pack(tmp_path, suffix, {"other.txt": b"another download"})
    extract_archive(archive, target)
    assert read_tree(target) == {"other.txt": b"another download"}


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    with pytest.raises(DatasetError, match="holds files from elsewhere"):
        extract_archive(pack(tmp_path, ".zip"), target)
    assert (target / "thesis.txt").read_text() == "precious"


def test_an_empty_folder_may_be_the_target(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    assert read_tree(extract_archive(pack(tmp_path, ".tar"), target)) == CONTENT


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_truncated_archive_is_named_and_leaves_nothing(tmp_path, suffix, share):
    noise = {f"{n}.bin": os.urandom(3000) for n in range(20)}
    archive = pack(tmp_path, suffix, noise)
    archive.write_bytes(archive.read_bytes()[: int(share * archive.stat().st_size)])
    with pytest.raises(DatasetError, match=rf"{archive.name} is damaged or truncated"):
        extract_archive(archive, tmp_path / "out")
    assert os.listdir(tmp_path) == [archive.name]


def test_a_tar_cut_exactly_between_two_members_is_noticed(tmp_path):
    archive = pack(tmp_path, ".tar", {"a": b"1" * 512, "b": b"2" * 512})
    archive.write_bytes(archive.read_bytes()[:1024])  # header and content of `a`, no end mark
    with pytest.raises(DatasetError, match=r"damaged or truncated .no end mark at byte 1024"):
        extract_archive(archive, tmp_path / "out")


def test_a_tar_with_a_damaged_header_in_the_middle_is_noticed(tmp_path):
    archive = pack(tmp_path, ".tar", {"a": b"1" * 512, "b": b"2" * 512})
    content = bytearray(archive.read_bytes())
    content[1024:1100] = b"\xff" * 76
    archive.write_bytes(content)
    with pytest.raises(DatasetError, match="damaged or truncated"):
        extract_archive(archive, tmp_path / "out")


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".zip"])
def test_a_flipped_byte_in_compressed_data_is_noticed(tmp_path, suffix):
    archive = pack(tmp_path, suffix, {"noise.bin": os.urandom(20_000)})
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(DatasetError, match="damaged or truncated"):
        extract_archive(archive, tmp_path / "out")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"<html>404</html>"])
def test_an_error_page_instead_of_an_archive_is_named(tmp_path, suffix, content):
    archive = tmp_path / f"page{suffix}"
    archive.write_bytes(content)
    with pytest.raises(DatasetError, match=f"page{suffix} is damaged or truncated"):
        extract_archive(archive, tmp_path / "out")


def test_an_unknown_kind_and_a_missing_archive_are_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"must end in one of \.tgz.*Got 'data.rar'"):
        extract_archive(tmp_path / "data.rar", tmp_path / "out")
    with pytest.raises(DatasetError, match=r"none.zip cannot be read: No such file"):
        extract_archive(tmp_path / "none.zip", tmp_path / "out")


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".zip"])
def test_a_bomb_is_stopped(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(archive_folder, "SMALL_BYTES", 1000)
    archive = pack(tmp_path, suffix, {"zeros": bytes(5_000_000)})
    with pytest.raises(DatasetError, match="like a decompression bomb"):
        extract_archive(archive, tmp_path / "out")
    assert os.listdir(tmp_path) == [archive.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_more_than_the_disk_holds_is_stopped(tmp_path, suffix, monkeypatch):
    usage = archive_folder.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(archive_folder.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(DatasetError, match="more than the 1000 bytes that are free"):
        extract_archive(pack(tmp_path, suffix), tmp_path / "out")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_too_many_members_are_stopped(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(archive_folder, "MAX_MEMBERS", 1)
    with pytest.raises(DatasetError, match="more than 1 members"):
        extract_archive(pack(tmp_path, suffix), tmp_path / "out")
