"""Tests of unpacking tar archives with members that try to get out."""

import io
import os
import tarfile

import pytest

from dml_core.data.archives import extract_archive
from dml_core.data.records import DatasetError


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
    "climbing": ([member("a/../../out")], "climbs out of the target folder"),
    "backslashes": ([member("..\\out")], "climbs out of the target folder"),
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
    "hard link out": ([member("h", tarfile.LNKTYPE, "../x")], "climbs out .* in '../x'"),
    "absolute hard link": ([member("h", tarfile.LNKTYPE, "/etc/passwd")], "absolute path"),
    "hard link to nothing": ([member("h", tarfile.LNKTYPE, "none")], "no file of the archive"),
    "hard link to a link": (
        [member("l", tarfile.SYMTYPE, "x"), member("h", tarfile.LNKTYPE, "l")],
        "written through the link",
    ),
    "pipe": ([member("p", tarfile.FIFOTYPE)], "device, pipe"),
    "device": ([member("d", tarfile.CHRTYPE)], "device, pipe"),
    "file over folder": ([member("d", tarfile.DIRTYPE), member("d")], "place of a folder"),
    "the target itself": ([member(".")], "place of a folder"),
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
