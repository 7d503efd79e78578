import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dml_core.data.prepared import open_development
from tasks.versioning.copies import PreparedSource, fetch_prepared, locate_prepared
from tasks.versioning.remote import Remote, push_data
from tasks.versioning.repo import commit_stage
from tasks.versioning.session import DvcError
from tests.references.dvc_projects import make_project, run_dvc
from tests.references.s3_servers import BUCKET, s3_server
from tests.references.tiny_trials import prepare_tiny, tiny_config

GLYPHS = Path("data/prepared/glyphs")
FETCH = """
import pickle, sys
from pathlib import Path
from tasks.versioning.copies import fetch_prepared
source = pickle.loads(bytes.fromhex(sys.argv[1]))
path = fetch_prepared(source, cache_root=Path(sys.argv[2]))
print((path / "dataset.json").stat().st_ino)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose prepared data are real, and pushed to a folder."""
    folder = make_project(tmp_path_factory.mktemp("project"), studies=("a",))
    prepare_tiny(folder / "data" / "prepared")
    commit_stage(folder, "prepare")
    run_dvc(folder, "remote", "add", "--default", "storage", "../storage-of-project")
    # 5 files and the list of them.
    assert push_data(folder) >= 6
    return folder


@pytest.fixture
def source(project):
    return locate_prepared(project, GLYPHS)


def test_fetched_data_train_and_hold_no_test_images(source, tmp_path, capfd):
    path = fetch_prepared(source, cache_root=tmp_path)
    assert capfd.readouterr() == ("", "")
    assert path.name == "glyphs"
    assert not (path / "test").exists()
    data = open_development(tiny_config(path.parent).data)
    assert len(data.train) + len(data.validation) == 64
    assert [entry.name for entry in path.parent.iterdir()] == ["glyphs"]


def test_a_second_call_needs_no_remote(source, tmp_path):
    path = fetch_prepared(source, cache_root=tmp_path)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    nowhere = PreparedSource(source.name, source.md5, remote=None)
    assert fetch_prepared(nowhere, cache_root=tmp_path) == path
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_a_damaged_copy_is_fetched_again(source, tmp_path):
    path = fetch_prepared(source, cache_root=tmp_path)
    (path / "splits.json").unlink()
    assert fetch_prepared(source, cache_root=tmp_path) == path
    assert (path / "splits.json").exists()


def test_a_flipped_bit_in_a_copy_is_named_and_fetched_again(source, tmp_path, caplog):
    path = fetch_prepared(source, cache_root=tmp_path)
    images = path / "development" / "images.bin"
    good = images.read_bytes()
    images.chmod(0o644)
    images.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    assert fetch_prepared(source, cache_root=tmp_path) == path
    assert images.read_bytes() == good
    assert f"{images} is damaged: its sha256 must be" in caplog.text
    assert "It is fetched again." in caplog.text


def test_processes_of_one_machine_fetch_once(source, tmp_path):
    command = [sys.executable, "-c", FETCH, pickle.dumps(source).hex(), str(tmp_path)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    running = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert len(set(answers)) == 1


def test_bytes_that_changed_in_the_remote_are_refused(project, source, tmp_path):
    copy = tmp_path / "storage"
    shutil.copytree(project.parent / "storage-of-project", copy)
    original = project / GLYPHS / "development" / "images.bin"
    digest = hashlib.md5(original.read_bytes(), usedforsecurity=False).hexdigest()
    images = copy / "files" / "md5" / digest[:2] / digest[2:]
    images.chmod(0o644)
    images.write_bytes(b"x" * images.stat().st_size)
    damaged = PreparedSource(source.name, source.md5, Remote("damaged", {"url": str(copy)}))
    with pytest.raises(DvcError, match=r"other bytes than the hash says .*development/images\.bin"):
        fetch_prepared(damaged, cache_root=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("glyphs"))


def test_data_that_were_never_pushed_say_so(source, tmp_path):
    empty = PreparedSource(source.name, source.md5, Remote("empty", {"url": str(tmp_path / "no")}))
    with pytest.raises(DvcError, match=rf"{source.md5}.*'empty'.*lacks bytes.*dml data push"):
        fetch_prepared(empty, cache_root=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("glyphs"))


def test_a_dataset_without_a_version_says_which_commands_make_one(project):
    with pytest.raises(DvcError, match=r"no version of data/prepared/birds.*dvc repro prepare"):
        locate_prepared(project, Path("data/prepared/birds"))


@pytest.mark.integration
def test_a_node_fetches_from_s3_with_its_own_credentials(project, tmp_path, monkeypatch):
    with s3_server(monkeypatch) as address:
        run_dvc(project, "remote", "add", "--force", "cloud", f"s3://{BUCKET}/data")
        run_dvc(project, "remote", "modify", "cloud", "endpointurl", address)
        push_data(project, remote="cloud")
        source = locate_prepared(project, GLYPHS, remote="cloud")
        assert "testing" not in repr(source)
        path = fetch_prepared(source, cache_root=tmp_path)
    assert len(open_development(tiny_config(path.parent).data).train) > 0
