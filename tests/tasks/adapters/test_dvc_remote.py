import shutil
from pathlib import Path

import pytest

from tasks.adapters.dvc_remote import pull_data, push_data, read_remote
from tasks.adapters.dvc_repo import commit_stage
from tasks.adapters.dvc_session import DvcError
from tasks.adapters.dvc_track import track
from tests.references.dvc_projects import make_project, run_dvc, run_stage
from tests.references.s3_servers import BUCKET, s3_server


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project with raw data, prepared data and the results of a sweep, all known to DVC."""
    folder = make_project(tmp_path_factory.mktemp("made"), studies=("a",))
    birds = folder / "data" / "raw" / "birds"
    (birds / "wren").mkdir(parents=True)
    (birds / "wren" / "1.txt").write_text("picture")
    track(folder, birds)
    for name in ("prepare", "sweep@a"):
        run_stage(folder, name)
        commit_stage(folder, name)
    return folder


@pytest.fixture
def project(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "project", symlinks=True))


def forget(folder, *names):
    """Removes data from the folder and from DVC's cache."""
    shutil.rmtree(folder / ".dvc" / "cache")
    for name in names:
        shutil.rmtree(folder / name)


def test_no_remote_says_how_to_add_one(project):
    for call in (push_data, pull_data, read_remote):
        with pytest.raises(DvcError, match=r"no default remote.*dvc remote add --default"):
            call(project)


def test_an_unknown_remote_suggests_a_near_one(project):
    run_dvc(project, "remote", "add", "storage", "../storage")
    with pytest.raises(DvcError, match=r"no remote 'storge'.*Did you mean 'storage'\?"):
        push_data(project, remote="storge")


def test_secrets_stay_where_they_are(project):
    run_dvc(project, "remote", "add", "--default", "cloud", "s3://bucket/data")
    secrets = "access_key_id = hush\nsecret_access_key = hush\nsession_token = hush\n"
    (project / ".dvc" / "config.local").write_text(
        f"['remote \"cloud\"']\nregion = eu-west-1\n{secrets}"
    )
    remote = read_remote(project)
    assert remote.settings["url"] == "s3://bucket/data"
    assert remote.settings["region"] == "eu-west-1"
    assert "hush" not in repr(remote)


def test_a_password_in_an_address_is_not_shown(project):
    run_dvc(project, "remote", "add", "web", "https://me:hush@localhost/data")
    assert read_remote(project, "web").shown_url == "https://***@localhost/data"


def test_data_go_to_a_folder_and_come_back(project, tmp_path, capfd):
    run_dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    assert push_data(project) > 0
    assert push_data(project) == 0
    forget(project, "data/raw/birds", "data/prepared", "results")
    assert pull_data(project) != []
    assert pull_data(project) == []
    assert (project / "data/raw/birds/wren/1.txt").read_text() == "picture"
    assert (project / "data/prepared/glyphs/test/images.bin").exists()
    assert not (project / "results").exists()
    assert capfd.readouterr() == ("", "")


def test_one_dataset_comes_alone(project, tmp_path):
    run_dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    push_data(project)
    forget(project, "data/raw/birds", "data/prepared")
    pull_data(project, "birds")
    assert (project / "data/raw/birds/wren/1.txt").exists()
    assert not (project / "data/prepared").exists()


def test_an_unknown_dataset_suggests_a_near_one(project, tmp_path):
    run_dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    with pytest.raises(DvcError, match=r"no dataset 'bird'.*Did you mean 'birds'\?"):
        pull_data(project, "bird")


def test_bytes_that_nobody_pushed_are_asked_for(project, tmp_path):
    run_dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    forget(project, "data/raw/birds")
    with pytest.raises(DvcError, match=r"'storage' .* lacks bytes.*dml data push"):
        pull_data(project, "birds")


def test_storage_that_is_away_is_named_with_the_reason(project, monkeypatch):
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    # One attempt is enough here; the storage's library tries several times by itself.
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    run_dvc(project, "remote", "add", "--default", "cloud", "s3://bucket/data")
    run_dvc(project, "remote", "modify", "cloud", "endpointurl", "http://127.0.0.1:1")
    with pytest.raises(DvcError, match=r"'cloud' .* cannot be used: Could not connect.*address"):
        push_data(project)
    forget(project, "data/raw/birds")
    with pytest.raises(DvcError, match=r"'cloud' .* cannot be used: Could not connect.*address"):
        pull_data(project, "birds")


@pytest.mark.integration
def test_data_go_to_s3_and_come_back(project, monkeypatch):
    with s3_server(monkeypatch) as address:
        run_dvc(project, "remote", "add", "--default", "cloud", f"s3://{BUCKET}/data")
        run_dvc(project, "remote", "modify", "cloud", "endpointurl", address)
        assert push_data(project, everything=True) > 0
        forget(project, "data/raw/birds", "data/prepared", "results")
        pull_data(project, everything=True)
    assert (project / "data/raw/birds/wren/1.txt").read_text() == "picture"
    assert (project / "results/a/sweep/winners.json").exists()
