"""Remotes of several kinds, real ones, as the doctor sees them."""

import pytest

from flows.doctor.services import check_remote
from tasks.study import StudyRequest, load_context
from tasks.versioning.remote import read_remote
from tests.references.dvc_projects import run_dvc
from tests.references.ray_clusters import free_port
from tests.references.s3_servers import BUCKET, s3_server
from tests.references.tiny_projects import TWO_ARMS, make_project

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("remotes"), {"main": TWO_ARMS})


@pytest.fixture
def look(folder, monkeypatch):
    """What is found of a remote at an address."""
    monkeypatch.chdir(folder)

    def look(url, *, endpoint=""):
        run_dvc(folder, "remote", "add", "--force", "--default", "storage", url)
        if endpoint:
            run_dvc(folder, "remote", "modify", "storage", "endpointurl", endpoint)
        context = load_context(StudyRequest(study="main"))
        return check_remote(context, read_remote(folder))[0]

    return look


def test_a_bucket_is_there_before_anything_was_pushed_and_a_missing_one_is_not(look, monkeypatch):
    with s3_server(monkeypatch) as address:
        empty = look(f"s3://{BUCKET}/some/folder", endpoint=address)
        assert empty.state == "ok", empty.message
        gone = look("s3://no-such-bucket/folder", endpoint=address)
        assert gone.state == "broken", gone.message
        assert "s3://no-such-bucket/folder" in gone.message


def test_a_store_that_does_not_answer_is_broken_and_its_keys_are_not_shown(look, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-ann")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    finding = look(f"s3://{BUCKET}/folder", endpoint=f"http://127.0.0.1:{free_port()}")
    assert finding.state == "broken"
    assert "cannot be used" in finding.message
    assert "hunter2" not in str(finding)
    assert "credentials" in finding.remedy


def test_an_empty_folder_is_there_and_a_missing_one_is_not(look, tmp_path):
    assert look(str(tmp_path)).state == "ok"
    assert look(str(tmp_path / "absent")).state == "broken"
