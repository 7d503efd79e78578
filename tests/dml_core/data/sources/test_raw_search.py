"""Tests of finding a dataset's files."""

import shutil
import zipfile
from pathlib import Path

import pytest

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError
from dml_core.data.sources.raw_search import Distribution, RawSearch, archive_stem, common_root

WHOLE = Distribution(
    name="letters", title="Letters", download="letters.zip", archive_stems=("letters*",)
)


def _touch(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return file


def _zip(file: Path, *members: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        for member in members:
            archive.writestr(member, "content")
    return file


def _search(raw: Path, distribution: Distribution = WHOLE) -> RawSearch:
    return RawSearch(FolderData(raw=str(raw), prepared_root=str(raw.parent / "made")), distribution)


@pytest.mark.parametrize("place", [".", "a", "a/b", "a/b/c"])
def test_entries_are_found_up_to_three_folders_below(tmp_path: Path, place: str):
    _touch(tmp_path / place / "list.txt")
    assert _search(tmp_path).find("list.txt") == tmp_path / place


def test_entries_four_folders_below_are_not_found(tmp_path: Path):
    _touch(tmp_path / "a/b/c/d/list.txt")
    assert _search(tmp_path).find("list.txt") is None


def test_the_nearest_folder_with_all_entries_wins(tmp_path: Path):
    _touch(tmp_path / "list.txt")
    for name in ("list.txt", "names.txt"):
        _touch(tmp_path / "z" / name)
        _touch(tmp_path / "a" / "deeper" / name)
    assert _search(tmp_path).find("list.txt", "names.txt") == tmp_path / "z"


def test_what_lies_unpacked_is_preferred_to_the_archive(tmp_path: Path):
    _touch(tmp_path / "letters/list.txt")
    _zip(tmp_path / "letters.zip", "letters/list.txt")
    assert _search(tmp_path).find("list.txt") == tmp_path / "letters"
    assert not (tmp_path / "letters.unpacked").exists()


def test_archives_of_other_datasets_stay_packed(tmp_path: Path):
    _zip(tmp_path / "numbers.zip", "list.txt")
    _zip(tmp_path / "letters.zip", "letters/list.txt")
    assert _search(tmp_path).find("list.txt") == tmp_path / "letters.unpacked/letters"
    assert not (tmp_path / "numbers.unpacked").exists()


def test_a_lone_archive_may_have_any_name(tmp_path: Path):
    _zip(tmp_path / "download (1).zip", "list.txt")
    assert _search(tmp_path).find("list.txt") == tmp_path / "download (1).unpacked"


def test_one_of_two_archives_with_strange_names_is_not_guessed(tmp_path: Path):
    _zip(tmp_path / "download1.zip", "list.txt")
    _zip(tmp_path / "download2.zip", "list.txt")
    assert _search(tmp_path).find("list.txt") is None


def test_an_archive_in_a_read_only_folder_is_unpacked_below_the_prepared_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = _zip(tmp_path / "raw" / "letters.zip", "list.txt")
    # Tests may run as root, for whom no folder is closed, so the answer of the system is set.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != archive.parent)
    found = _search(archive.parent).find("list.txt")
    assert found == tmp_path / "made/.unpacked/folder/letters.unpacked"
    assert [path.name for path in archive.parent.iterdir()] == ["letters.zip"]


def test_a_second_archive_beside_the_named_one_is_used_only_for_parts(tmp_path: Path):
    named = _zip(tmp_path / "letters.zip", "other.txt")
    _zip(tmp_path / "letters_labels.zip", "list.txt")
    assert _search(named).find("list.txt") is None
    in_parts = Distribution(**{**vars(WHOLE), "in_parts": True})
    assert _search(named, in_parts).find("list.txt") == tmp_path / "letters_labels.unpacked"


def test_archives_within_archives_are_unpacked_one_level_deep(tmp_path: Path):
    archive = _zip(tmp_path / "letters.zip", "list.txt")
    for _ in range(3):
        content = archive.read_bytes()
        with zipfile.ZipFile(archive, "w") as outer:
            outer.writestr("letters.zip", content)
    in_parts = Distribution(**{**vars(WHOLE), "in_parts": True})
    assert _search(tmp_path, in_parts).find("list.txt") is None
    unpacked = [path for path in tmp_path.rglob("letters.unpacked") if path.is_dir()]
    assert len(unpacked) == 2


def test_an_unfinished_unpacking_is_not_taken_for_the_dataset(tmp_path: Path):
    _zip(tmp_path / "letters.zip", "letters/list.txt", "letters/names.txt")
    _touch(tmp_path / ".letters.unpacked.partial-1a2b/letters/list.txt")
    assert _search(tmp_path).find("list.txt") == tmp_path / "letters.unpacked/letters"


def test_an_archive_outside_of_the_project_is_unpacked_inside_of_it(tmp_path: Path, monkeypatch):
    archive = _zip(tmp_path / "downloads/letters.zip", "letters/list.txt")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    search = RawSearch(FolderData(raw=str(archive), alias="mine", prepared_root="made"), WHOLE)
    found = search.find("list.txt")
    assert found.resolve() == project / "made/.unpacked/mine/letters.unpacked/letters"
    assert [path.name for path in archive.parent.iterdir()] == ["letters.zip"]


def test_nothing_there_names_the_place_and_the_download(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"'letters' is missing at .*raw: there is no such"):
        _search(tmp_path / "raw")


def test_an_empty_folder_names_what_was_looked_for(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"list\.txt cannot be found .*Download letters\.zip"):
        _search(tmp_path).require("list.txt")


def test_a_partial_folder_names_what_is_missing_there(tmp_path: Path):
    _touch(tmp_path / "letters/list.txt")
    with pytest.raises(DatasetError, match=r"partial at .*letters: names\.txt must be there"):
        _search(tmp_path).require("list.txt", "names.txt")


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path):
    file = _touch(tmp_path / "list.txt")
    with pytest.raises(DatasetError, match=r"must be a folder or an archive .*Got .*list\.txt"):
        _search(file)


def test_a_damaged_archive_is_named(tmp_path: Path):
    archive = _zip(tmp_path / "letters.zip", "list.txt")
    archive.write_bytes(archive.read_bytes()[:40])
    with pytest.raises(DatasetError, match=r"letters\.zip is damaged"):
        _search(archive).find("list.txt")


def test_the_common_root_resolves_links(tmp_path: Path):
    (tmp_path / "disk/one").mkdir(parents=True)
    (tmp_path / "disk/two").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk/one")
    root = common_root([tmp_path / "link", tmp_path / "disk/two"])
    assert root == (tmp_path / "disk").resolve()
    shutil.rmtree(tmp_path / "disk/two")
    assert common_root([tmp_path / "link"]) == (tmp_path / "disk/one").resolve()


TWO_PARTS = Distribution(
    name="letters",
    title="Letters (published by nobody)",
    download="images.zip and labels.zip",
    archive_stems=("images*", "labels"),
    in_parts=True,
)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("CUB_200_2011.tgz", "CUB_200_2011"),
        ("a.tar.gz", "a"),
        ("a.b.ZIP", "a.b"),
        ("notes.txt", None),
        (".zip", None),
    ],
)
def test_the_stem_is_the_name_without_the_archive_suffix(name: str, stem: str | None):
    assert archive_stem(name) == stem


def test_archives_are_ranked_by_their_patterns_whatever_the_case():
    names = ["Labels.zip", "IMAGES (1).tgz", "labels_old.zip", "images.txt"]
    assert [TWO_PARTS.rank_archive(name) for name in names] == [1, 0, None, None]


def test_the_advice_names_the_download_and_the_key():
    assert TWO_PARTS.advice() == (
        "Download images.zip and labels.zip of Letters (published by nobody), and set data.raw "
        "to the folder with these files."
    )
