"""Tests of unpacking archives."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

from dml_core.data import archives as archive_folder
from dml_core.data.archives import MARKER, ArchiveFolder, SizeBudget, extract_archive
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


def test_a_folder_with_other_content_is_never_replaced(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    with pytest.raises(DatasetError, match="holds other files"):
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
    with pytest.raises(DatasetError, match="has a null byte in its name"):
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


def member(name, kind=tarfile.REGTYPE, link="", data=b"x"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, io.BytesIO(data)


def write_tar(folder, *members):
    archive = folder / "data.tar"
    with tarfile.open(archive, "w") as packed:
        for info, data in members:
            packed.addfile(info, data)
    return archive


REFUSED = {
    "absolute": ([member("/tmp/dml_escaped")], "has the absolute path '/tmp/dml_escaped'"),
    "climbing": ([member("a/../../out")], "leaves the target folder"),
    "backslashes": ([member("..\\out")], "leaves the target folder"),
    "drive": ([member("C:/out")], "has the absolute path"),
    "link out": ([member("a/l", tarfile.SYMTYPE, "../../x")], "outside of the target folder"),
    "absolute link": ([member("l", tarfile.SYMTYPE, "/etc")], "outside of the target folder"),
    "written through": (
        [member("l", tarfile.SYMTYPE, "."), member("l/x")],
        "written through the link 'l'",
    ),
    "overwritten link": (
        [member("l", tarfile.SYMTYPE, "x"), member("l")],
        "written through the link 'l'",
    ),
    "links over links": (
        [member("b", tarfile.SYMTYPE, "."), member("a", tarfile.SYMTYPE, "b/b/../../x")],
        "links outside of the target folder",
    ),
    "hard link out": (
        [member("h", tarfile.LNKTYPE, "../x")],
        "leaves the target folder .* in '../x'",
    ),
    "absolute hard link": ([member("h", tarfile.LNKTYPE, "/etc/passwd")], "absolute path"),
    "hard link to nothing": ([member("h", tarfile.LNKTYPE, "none")], "not a file of the archive"),
    "hard link to a link": (
        [member("l", tarfile.SYMTYPE, "x"), member("h", tarfile.LNKTYPE, "l")],
        "written through the link",
    ),
    "pipe": ([member("p", tarfile.FIFOTYPE)], "device, pipe"),
    "device": ([member("d", tarfile.CHRTYPE)], "device, pipe"),
    "file over folder": ([member("d", tarfile.DIRTYPE), member("d")], "would replace a folder"),
    "the target itself": ([member(".")], "would replace a folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_members_that_are_not_to_be_trusted_are_refused_by_name(tmp_path, case):
    members, reason = REFUSED[case]
    archive = write_tar(tmp_path, member("good"), *members)
    with pytest.raises(DatasetError, match=reason) as caught:
        extract_archive(archive, tmp_path / "inner" / "out")
    assert any(f"has a member {info.name!r}" in str(caught.value) for info, _ in members)
    assert str(archive) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["data.tar", "inner"]
    assert os.listdir(tmp_path / "inner") == []
    assert not os.path.exists("/tmp/dml_escaped")


def test_links_that_stay_inside_are_made(tmp_path):
    archive = write_tar(
        tmp_path,
        member("./", tarfile.DIRTYPE),
        member("a/x", data=b"content"),
        member("a/soft", tarfile.SYMTYPE, "../a/x"),
        member("hard", tarfile.LNKTYPE, "a/x"),
        member("folder", tarfile.SYMTYPE, "a"),
    )
    out = extract_archive(archive, tmp_path / "out")
    assert os.readlink(out / "a" / "soft") == "../a/x"
    for name in ("a/x", "a/soft", "hard", "folder/x"):
        assert (out / name).read_bytes() == b"content"


def test_of_two_members_with_one_name_the_later_stays(tmp_path):
    archive = write_tar(tmp_path, member("a", data=b"older"), member("a", data=b"newer"))
    assert (extract_archive(archive, tmp_path / "out") / "a").read_bytes() == b"newer"


def test_modes_that_lock_out_or_give_rights_are_not_taken_over(tmp_path):
    info, data = member("a")
    info.mode = 0o4000
    out = extract_archive(write_tar(tmp_path, (info, data)), tmp_path / "out")
    mode = (out / "a").stat().st_mode
    assert mode & 0o4000 == 0
    assert mode & 0o400


def test_an_archive_without_members_gives_an_empty_folder(tmp_path):
    out = extract_archive(write_tar(tmp_path), tmp_path / "out")
    assert [name for name in os.listdir(out) if not name.startswith(".")] == []


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
    with pytest.raises(DatasetError, match=r"leaves the target folder|absolute path") as caught:
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
