"""Damaged prepared data, with every kind of good copy, in a real DVC project with a remote."""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dml_core.data.prepared import open_development
from dml_core.data.prepared_info import verify_files
from dml_core.data.records import DatasetError
from dml_core.data.writing import TEST
from tasks.versioning.remote import push_data
from tasks.versioning.repo import commit_stage, stale_stages
from tasks.versioning.restoring import ensure_whole, find_damage, restore_before_preparing
from tests.references.dvc_projects import make_project, run_dvc
from tests.references.tiny_trials import prepare_tiny, tiny_config

PREPARED = Path("data/prepared")
GLYPHS = PREPARED / "glyphs"
IMAGES = GLYPHS / "development" / "images.bin"
ROOT = Path(__file__).parents[3]
ENSURE = """
import sys
from pathlib import Path
from tests.references.tiny_trials import tiny_config
from tasks.versioning.restoring import ensure_whole
ensure_whole(tiny_config(Path("data/prepared")).data)
print(Path("data/prepared/glyphs/development/images.bin").stat().st_ino)
"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A project whose tiny dataset is committed, and pushed to a folder beside it."""
    folder = make_project(tmp_path_factory.mktemp("origin") / "project", studies=("a",))
    prepare_tiny(folder / PREPARED)
    commit_stage(folder, "prepare")
    run_dvc(folder, "remote", "add", "--default", "storage", "../storage")
    push_data(folder)
    return folder


@pytest.fixture
def project(origin, tmp_path, monkeypatch):
    """A copy of project and remote, which is the current folder."""
    shutil.copytree(origin.parent, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(tmp_path / "copy" / "project")
    return Path.cwd()


@pytest.fixture
def data(project):
    return tiny_config(PREPARED).data


@pytest.fixture
def no_fonts(monkeypatch):
    """The generator is as good as raw data that are not there any more."""

    def fail(config):
        raise DatasetError("dataset 'glyphs' is missing at data/raw/glyphs.")

    monkeypatch.setattr("dml_core.data.sources.registry.list_images", fail)


def flip(file, *, keep_time=False):
    """Flips a bit in the middle of a file, in place, as a bad disk does."""
    state = file.stat()
    file.chmod(0o644)
    with file.open("r+b") as stream:
        stream.seek(state.st_size // 2)
        byte = stream.read(1)[0]
        stream.seek(state.st_size // 2)
        stream.write(bytes([byte ^ 1]))
    if keep_time:
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def cached(project, file):
    """The copy of a good file in DVC's cache."""
    return stored(project / ".dvc" / "cache", file)


def stored(storage, file):
    digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    return storage / "files" / "md5" / digest[:2] / digest[2:]


def check_all_is_well(project):
    verify_files(GLYPHS)
    assert stale_stages(project, ["prepare"]) == []
    assert [path.name for path in PREPARED.iterdir()] == ["glyphs"]


def test_whole_data_are_left_alone(project, data, caplog):
    before = {path: path.stat().st_ctime_ns for path in GLYPHS.rglob("*")}
    ensure_whole(data, ("development", "test"))
    assert {path: path.stat().st_ctime_ns for path in GLYPHS.rglob("*")} == before
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["development/images.bin", "development/manifest.parquet"])
def test_a_flipped_bit_is_named_and_the_file_comes_from_the_cache(
    project, data, caplog, no_fonts, name
):
    file = GLYPHS / name
    good = hashlib.sha256(file.read_bytes()).hexdigest()
    flip(file)
    bad = hashlib.sha256(file.read_bytes()).hexdigest()
    shutil.rmtree(project.parent / "storage")
    with caplog.at_level(logging.WARNING):
        ensure_whole(data)
    assert f"{file} is damaged: its sha256 must be {good}. Got {bad}" in caplog.text
    assert "It was restored from DVC's cache." in caplog.text
    check_all_is_well(project)
    said = run_dvc(project, "status", "prepare")
    assert said == "Data and pipelines are up to date.\n"


@pytest.mark.parametrize("name", ["development/images.bin", "splits.json", "dataset.json"])
def test_a_truncated_file_comes_back(project, data, name):
    os.truncate(GLYPHS / name, 10)
    ensure_whole(data)
    check_all_is_well(project)


def test_a_lost_file_comes_back(project, data):
    IMAGES.unlink()
    ensure_whole(data)
    check_all_is_well(project)


def test_a_changed_digest_in_the_description_does_not_condemn_the_file(project, data):
    text = (GLYPHS / "dataset.json").read_text()
    digest = hashlib.sha256(IMAGES.read_bytes()).hexdigest()
    (GLYPHS / "dataset.json").write_text(text.replace(digest, "0" * 64))
    ensure_whole(data)
    check_all_is_well(project)


def test_a_damaged_description_hides_no_damaged_images(project, data):
    (GLYPHS / "dataset.json").write_bytes(b"\0" * 100)
    flip(IMAGES)
    ensure_whole(data)
    check_all_is_well(project)


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hardlink", "symlink"])
def test_a_file_that_is_damaged_together_with_the_cache_comes_from_the_remote(
    project, data, caplog, no_fonts, link
):
    # As DVC has it after: dvc config cache.type hardlink, dvc checkout --relink.
    copy = cached(project, IMAGES)
    IMAGES.unlink()
    link(copy, IMAGES)
    flip(IMAGES, keep_time=True)
    ensure_whole(data)
    assert "It was restored from DVC's remote." in caplog.text
    assert "was damaged or lost in DVC's cache too, and is replaced" in caplog.text
    assert cached(project, IMAGES) == copy
    assert stored(project / ".dvc" / "cache", copy) == copy
    check_all_is_well(project)


@pytest.mark.parametrize("lost", ["files", "listing"])
def test_a_file_that_the_cache_lacks_comes_from_the_remote(project, data, caplog, no_fonts, lost):
    copy = cached(project, IMAGES)
    flip(IMAGES)
    for path in [copy] if lost == "files" else (project / ".dvc" / "cache").rglob("*.dir"):
        path.unlink()
    ensure_whole(data)
    assert "It was restored from DVC's remote." in caplog.text
    verify_files(GLYPHS)
    if lost == "files":
        check_all_is_well(project)


@pytest.mark.parametrize("remote", ["damaged", "empty", "none"])
def test_without_cache_and_remote_the_data_are_prepared_again(project, data, caplog, remote):
    copy = stored(project.parent / "storage", IMAGES)
    flip(cached(project, IMAGES))
    flip(IMAGES)
    if remote == "damaged":
        flip(copy)
    elif remote == "empty":
        shutil.rmtree(project.parent / "storage")
    else:
        (project / ".dvc" / "config").write_text("")
    ensure_whole(data)
    assert "It was restored from preparing again." in caplog.text
    check_all_is_well(project)


def test_no_good_copy_ends_with_the_file_and_the_sources_tried(project, data, no_fonts):
    flip(cached(project, IMAGES))
    (project / ".dvc" / "config").write_text("")
    flip(IMAGES)
    before = IMAGES.read_bytes()
    with pytest.raises(DatasetError, match="No good copy was found") as raised:
        ensure_whole(data)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith(f"{IMAGES} is damaged: its sha256 must be ")
    assert "DVC's cache: the copy of development/images.bin in DVC's cache is damaged" in lines[2]
    assert "DVC's remote: the DVC project at . has no default remote" in lines[3]
    assert "preparing again: dataset 'glyphs' is missing at data/raw/glyphs" in lines[4]
    assert lines[5].endswith("run: dml prepare")
    assert IMAGES.read_bytes() == before
    assert [path.name for path in PREPARED.iterdir()] == ["glyphs"]


def test_outside_of_a_dvc_project_the_data_are_prepared_again(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    prepare_tiny(PREPARED)
    flip(IMAGES)
    ensure_whole(tiny_config(PREPARED).data)
    assert "It was restored from preparing again." in caplog.text
    verify_files(GLYPHS)


def test_copies_of_other_data_are_no_good_copies(project, caplog):
    # Prepared anew with other values since the last commit.
    prepare_tiny(PREPARED, data__draw_seed=5)
    config = tiny_config(PREPARED, data__draw_seed=5).data
    flip(IMAGES)
    ensure_whole(config)
    assert "It was restored from preparing again." in caplog.text
    verify_files(GLYPHS)


def test_damaged_data_of_other_values_are_not_restored(project):
    flip(IMAGES)
    before = IMAGES.read_bytes()
    other = tiny_config(PREPARED, data__draw_seed=5).data
    ensure_whole(other)
    assert IMAGES.read_bytes() == before
    with pytest.raises(DatasetError, match="prepared with other values"):
        open_development(other)


def test_only_files_that_are_about_to_be_read_are_checked(project, data):
    flip(GLYPHS / "test" / "images.bin")
    ensure_whole(data)
    assert find_damage(GLYPHS, (TEST,)) != []
    ensure_whole(data, (TEST,))
    check_all_is_well(project)


def test_a_file_is_hashed_once_by_a_process(project, data, monkeypatch):
    ensure_whole(data)
    monkeypatch.setattr(
        "tasks.versioning.restoring.hash_file", lambda file: pytest.fail(f"hashed {file}")
    )
    ensure_whole(data)


def test_processes_of_one_machine_restore_once(project, data):
    flip(IMAGES)
    command = [sys.executable, "-c", ENSURE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert len(set(answers)) == 1
    check_all_is_well(project)


def test_leftovers_of_a_killed_process_are_removed(project, data):
    left = PREPARED / ".glyphs.partial-0123abcd"
    left.mkdir()
    (left / "half").write_bytes(b"half")
    flip(IMAGES)
    ensure_whole(data)
    check_all_is_well(project)


def test_preparing_continues_where_no_copy_is_good(project, data, no_fonts, caplog):
    shutil.rmtree(project / ".dvc" / "cache")
    (project / ".dvc" / "config").write_text("")
    flip(IMAGES)
    restore_before_preparing(data)
    assert "The data are prepared anew." in caplog.text
