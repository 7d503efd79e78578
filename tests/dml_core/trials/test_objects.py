"""A bucket that is away, refuses, or does not exist."""

import threading
import time

import pytest

from dml_core.trials import objects
from dml_core.trials.objects import BucketRefused, BucketUnavailable, ObjectFolder
from flows.servers.network import find_free_port
from tests.references.s3_servers import BUCKET, s3_server


@pytest.fixture
def port(monkeypatch):
    port = find_free_port("127.0.0.1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    return port


def test_a_bucket_that_comes_back_loses_nothing(port, monkeypatch, caplog):
    folder = ObjectFolder(f"s3://{BUCKET}/a")
    found = []
    thread = threading.Thread(target=lambda: (folder.write("x", b"1"), found.append(1)))
    thread.start()
    while not caplog.records:
        time.sleep(0.1)
    assert found == []
    with s3_server(monkeypatch, port=port):
        thread.join(30)
        assert folder.read("x") == b"1"
    said = [record.getMessage() for record in caplog.records if record.name == objects.__name__]
    first, last = said
    assert "does not answer (Could not connect to the endpoint URL" in first
    assert "answers again, after" in last


def test_a_bucket_that_stays_away_is_named(port, monkeypatch):
    monkeypatch.setattr(objects, "PATIENCE_SECONDS", 1.0)
    with pytest.raises(BucketUnavailable, match=rf"s3://{BUCKET}/a did not answer for \d+ s"):
        ObjectFolder(f"s3://{BUCKET}/a").read("x")


def test_a_missing_bucket_and_missing_credentials_are_named_at_once(port, monkeypatch, tmp_path):
    with s3_server(monkeypatch, port=port):
        with pytest.raises(BucketRefused, match=r"bucket of sweep.storage=s3://none/a does not"):
            ObjectFolder("s3://none/a").write("x", b"")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        with pytest.raises(BucketRefused, match=r"may not be used: .* the node's role"):
            ObjectFolder(f"s3://{BUCKET}/a").write("x", b"")


def test_an_unknown_kind_of_address_is_named():
    with pytest.raises(BucketRefused, match=r"such as s3://bucket/prefix\. Got 'nosuch://a'"):
        ObjectFolder("nosuch://a")


def test_objects_are_listed_in_pages_and_read_together(port, monkeypatch):
    with s3_server(monkeypatch, port=port):
        folder = ObjectFolder(f"s3://{BUCKET}/a")
        for number in range(3):
            folder.write(f"trials/{number}", str(number).encode())
        folder.write("trials-of-another", b"")
        assert list(folder.list_objects("trials")) == ["0", "1", "2"]
        found = folder.read_many(["trials/0", "trials/2", "trials/missing"])
        assert found == {"trials/0": b"0", "trials/2": b"2"}
        assert folder.read_many([]) == {}
