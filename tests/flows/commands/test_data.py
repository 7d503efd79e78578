import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from dml_core.config import load_trial_config
from dml_core.config.problems import ConfigError
from dml_core.data.records import DatasetError
from flows.commands import data as command
from tasks.versioning.repo import stale_stages
from tasks.versioning.session import DvcError
from tests.references.drawn_datasets import write_tree
from tests.references.dvc_projects import make_project, run, run_dvc

DML = Path(sys.executable).with_name("dml")
SMALL = ["data.image_size_px=16"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = make_project(tmp_path / "project", studies=("a",))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def photos(tmp_path):
    """Eight classes of three images, outside the project."""
    write_tree(tmp_path / "photos", num_classes=8)
    return tmp_path / "photos"


def add(path, *assignments, name="birds", table="", write=False):
    params = Path("params.yaml")
    sets = [*SMALL, *assignments]
    command.add(path, name, table, sets, params, write)


def test_a_folder_is_copied_tracked_and_ready_to_use(project, photos, capsys):
    add(photos, write=True)
    said = capsys.readouterr().out
    assert "birds: 24 images, 4 classes to develop on, 4 held back" in said
    assert "git add data/raw/birds.dvc" in said
    assert "next: dml run main, or another study of: dml studies\n" in said
    assert said.endswith("suits these images: dml ask data/raw/birds\n")
    assert yaml.safe_load((project / "data/raw/birds.dvc").read_text())["outs"][0]["nfiles"] == 24
    config = load_trial_config(Path("params.yaml")).data
    assert (config.name, config.folder_name, config.raw) == ("folder", "birds", "data/raw/birds")
    assert config.image_size_px == 16
    assert "# The parameters of sweeps." in (project / "params.yaml").read_text()
    assert (photos / "c00" / "0.png").exists()
    # dvc.yaml takes the name of the dataset's folder from the parameters.
    assert "data/prepared/birds" in run_dvc(project, "status", "prepare")


def test_git_sees_the_hash_and_not_the_images(project, photos):
    add(photos)
    assert run(project, "git", "status", "--short").split() == ["??", "data/raw/birds.dvc"]


def test_without_write_the_parameters_are_printed(project, photos, capsys):
    before = (project / "params.yaml").read_text()
    add(photos, "data.color=gray")
    said = capsys.readouterr().out
    assert (project / "params.yaml").read_text() == before
    printed = yaml.safe_load(said[said.index("data:\n") : said.index("next:")])
    assert printed["data"]["alias"] == "birds"
    assert printed["data"]["color"] == "gray"


def test_an_archive_is_taken_as_it_is(project, photos, tmp_path):
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as archive:
        archive.add(photos, arcname="photos")
    add(tmp_path / "photos.tar.gz", write=True)
    assert load_trial_config(Path("params.yaml")).data.raw == "data/raw/birds.tar.gz"
    assert (project / "data/raw/birds.tar.gz.dvc").exists()


def test_data_that_lie_in_the_raw_folder_stay_there_and_can_change(project, photos, capsys):
    place = photos.rename(project / "data" / "raw" / "mine")
    add(place, name="birds")
    (place / "c00" / "0.png").unlink()
    add(Path("data/raw/mine"), name="birds")
    assert "copying" not in capsys.readouterr().out
    assert yaml.safe_load((project / "data/raw/mine.dvc").read_text())["outs"][0]["nfiles"] == 23
    assert stale_stages(project, ["prepare"]) == ["prepare"]


def test_a_table_names_images_and_labels(project, photos):
    rows = [f"c{label:02d}/{n}.png,c{label:02d},{n}.5" for label in range(8) for n in range(3)]
    (photos / "all.csv").write_text("path,class,angle\n" + "\n".join(rows) + "\n")
    add(photos, "data.continuous_labels=[angle]", table="all.csv", write=True)
    config = load_trial_config(Path("params.yaml")).data
    assert config.table == "all.csv"
    assert config.continuous_labels == ("angle",)


def test_a_bad_dataset_is_refused_and_leaves_nothing(project, tmp_path):
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "1.png").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"1\.png is not in a class folder"):
        add(tmp_path / "loose")
    assert [path.name for path in (project / "data" / "raw").iterdir()] == ["README.md"]


def test_a_dataset_that_leaks_is_refused_before_it_is_tracked(project, photos, capsys):
    shutil.copyfile(photos / "c07" / "1.png", photos / "c00" / "2.png")
    before = (project / "params.yaml").read_text()
    with pytest.raises(DatasetError, match=r"Found 1 copy, all listed in .*birds\.leaks\.csv") as e:
        add(photos, write=True)
    assert "and 'c07/1.png' (test): same bytes" in str(e.value)
    assert "'c00/2.png'" in (project / "data/prepared/birds.leaks.csv").read_text().replace(
        '"', "'"
    )
    assert [path.name for path in (project / "data" / "raw").iterdir()] == ["README.md"]
    assert (project / "params.yaml").read_text() == before
    add(photos, "data.on_leak=drop", write=True)
    said = capsys.readouterr().out
    assert "duplicates    1 image equal to one of another split, dropped (data.on_leak)" in said
    assert (project / "data/raw/birds.dvc").exists()
    assert load_trial_config(Path("params.yaml")).data.on_leak == "drop"


def test_copies_and_similar_names_are_reported_when_a_dataset_is_added(project, photos, capsys):
    shutil.copyfile(photos / "c07" / "1.png", photos / "c07" / "2.png")
    (photos / "c06").rename(photos / "C07")
    add(photos, "data.test_selection=random")
    said = capsys.readouterr().out
    assert "duplicates    1 image equal to another of the same class" in said
    assert "class names that are probably the same class: 'C07' (" in said


def test_a_bad_archive_is_refused_and_leaves_nothing(project, tmp_path):
    (tmp_path / "note.txt").write_text("no picture")
    with tarfile.open(tmp_path / "notes.tar", "w") as archive:
        archive.add(tmp_path / "note.txt", arcname="note.txt")
    with pytest.raises(DatasetError, match="found none"):
        add(tmp_path / "notes.tar")
    assert [path.name for path in (project / "data" / "raw").iterdir()] == ["README.md"]


def test_a_taken_name_is_refused(project, photos):
    add(photos)
    with pytest.raises(DatasetError, match=r"data/raw/birds must be free.*another --name"):
        add(photos)
    assert (project / "data/raw/birds/c00/0.png").exists()


@pytest.mark.parametrize("name", ["../birds", "", "a/b", "glyphs"])
def test_an_invalid_name_is_refused(project, photos, name):
    with pytest.raises((ConfigError, DatasetError), match="alias"):
        add(photos, name=name)
    assert [path.name for path in (project / "data" / "raw").iterdir()] == ["README.md"]


def test_a_missing_path_and_the_project_itself_are_refused(project):
    with pytest.raises(DatasetError, match="no file or folder nowhere"):
        add(Path("nowhere"))
    with pytest.raises(DatasetError, match="holds this project itself"):
        add(project.parent)


def test_outside_a_dvc_project_nothing_is_copied(tmp_path, monkeypatch, photos):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DvcError, match="dvc init"):
        add(photos)
    assert not (tmp_path / "data").exists()


def test_push_and_pull_say_what_they_did(project, photos, tmp_path, capsys):
    add(photos)
    run_dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    command.push(remote="", everything=False)
    command.push(remote="", everything=False)
    command.pull("birds", remote="", everything=False)
    said = capsys.readouterr().out
    assert "25 files sent" in said
    assert "everything was there already" in said
    assert "everything is here already" in said


def test_a_mistake_ends_in_a_message(project):
    done = subprocess.run([str(DML), "data", "push"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "dml: the DVC project at" in done.stderr
    assert "dvc remote add --default storage" in done.stderr
    assert "Traceback" not in done.stderr
