import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml

from tasks.versioning.remote import pull_data, push_data, read_remote
from tasks.versioning.repo import commit_stage
from tasks.versioning.session import DvcError, track
from tests.references.dvc_projects import make_project, run, run_dvc, run_stage
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


def test_missing_bytes_are_requested_from_their_owner(project, tmp_path):
    run_dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    forget(project, "data/raw/birds")
    with pytest.raises(DvcError, match=r"'storage' .* lacks bytes.*dml data push"):
        pull_data(project, "birds")


def push_to(project, storage):
    run_dvc(project, "remote", "add", "--default", "storage", str(storage))
    push_data(project)


def test_a_remote_with_other_bytes_than_the_hash_says_is_refused(project, tmp_path):
    push_to(project, tmp_path / "storage")
    forget(project, "data/raw/birds")
    oid = hashlib.md5(b"picture", usedforsecurity=False).hexdigest()
    stored = tmp_path / "storage" / "files" / "md5" / oid[:2] / oid[2:]
    assert stored.read_text() == "picture"
    stored.chmod(0o644)
    stored.write_text("forgery")
    with pytest.raises(DvcError, match=r"'storage' .* has other bytes than the hash says.*push"):
        pull_data(project, "birds")
    assert not (project / "data/raw/birds/wren/1.txt").exists()


@pytest.mark.parametrize("leads", ["up", "absolute"])
def test_a_list_of_files_that_leads_elsewhere_is_refused(project, tmp_path, leads):
    push_to(project, tmp_path / "storage")
    forget(project, "data/raw/birds")
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    name = "../../../../victim.txt" if leads == "up" else str(victim)
    oid = hashlib.md5(b"picture", usedforsecurity=False).hexdigest()
    listing = json.dumps([{"md5": oid, "relpath": name}]).encode()
    new = hashlib.md5(listing, usedforsecurity=False).hexdigest()
    stored = tmp_path / "storage" / "files" / "md5" / new[:2] / f"{new[2:]}.dir"
    stored.parent.mkdir(exist_ok=True)
    stored.write_bytes(listing)
    named = project / "data" / "raw" / "birds.dvc"
    content = yaml.safe_load(named.read_text())
    content["outs"][0]["md5"] = f"{new}.dir"
    named.write_text(yaml.safe_dump(content))
    with pytest.raises(DvcError, match=r"birds names '.*victim\.txt', which lies outside it"):
        pull_data(project, "birds")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("../../../outside/birds", r"birds\.dvc names .* must lie in the project"),
        ("link/birds", r"birds\.dvc names .*link, and .* must lie in the project"),
        # DVC itself knows that git's own folder is none of its business.
        ("../../.git/birds", r"\.git/birds' is ignored"),
    ],
)
def test_an_output_outside_of_the_project_is_refused(project, tmp_path, place, reason):
    push_to(project, tmp_path / "storage")
    forget(project, "data/raw/birds")
    victim = tmp_path / "outside" / "birds" / "mine.txt"
    victim.parent.mkdir(parents=True)
    victim.write_text("mine")
    link = project / "data" / "raw" / "link"
    link.symlink_to(tmp_path / "outside")
    run(project, "git", "add", "--force", str(link))
    named = project / "data" / "raw" / "birds.dvc"
    content = yaml.safe_load(named.read_text())
    content["outs"][0]["path"] = place
    named.write_text(yaml.safe_dump(content))
    with pytest.raises(DvcError, match=reason):
        pull_data(project, "birds")
    assert [path.name for path in victim.parent.iterdir()] == ["mine.txt"]
    assert not (project / ".git" / "birds").exists()


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
