"""The bucket of sweep.storage, on a real S3 server."""

from dml_core.trials.objects import ObjectFolder
from flows.doctor.probes import DoctorRequest
from flows.doctor.services import check_storage, probe_storage
from flows.servers.network import find_free_port
from tasks.study import StudyRequest
from tests.references.s3_servers import BUCKET, s3_bucket
from tests.references.tiny_projects import TWO_ARMS, make_project


def test_a_bucket_that_can_be_used_is_left_as_it_was():
    with s3_bucket() as bucket:
        # Other tests of this process write to the same bucket.
        place = f"{bucket}/only-checked"
        found = check_storage(place, limit_seconds=10)
        assert (found.state, found.subject) == ("ok", "storage")
        assert found.message == f"sweep.storage={place} answers and can be written to"
        assert ObjectFolder(place).list_objects("") == {}


def test_a_missing_bucket_and_an_unknown_address_have_remedies():
    with s3_bucket():
        found = check_storage("s3://none/a", limit_seconds=10)
        assert found.state == "broken"
        assert found.message == "the bucket of sweep.storage=s3://none/a does not exist"
        assert found.remedy == "Create it, or correct the address."
    found = check_storage("nosuch://a", limit_seconds=10)
    assert found.state == "broken"
    assert found.message.startswith("sweep.storage must be an address that fsspec can open")


def test_a_bucket_that_does_not_answer_is_broken_within_its_time(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_free_port('127.0.0.1')}")
    found = check_storage(f"s3://{BUCKET}/a", limit_seconds=0.1)
    assert found.state == "broken"
    assert f"sweep.storage=s3://{BUCKET}/a cannot be used: " in found.message
    assert "did not answer" in found.message
    assert "AWS_ENDPOINT_URL" in found.remedy


def test_the_probe_reads_the_address_of_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(make_project(tmp_path, {"main": TWO_ARMS}))

    def ask(*overrides):
        study = StudyRequest(study="main", overrides=overrides)
        return probe_storage(DoctorRequest(study=study, timeout_seconds=10))

    (found,) = ask()
    assert found.message.startswith("sweep.storage is not set")
    with s3_bucket() as bucket:
        (found,) = ask(f"sweep.storage={bucket}/x")
    assert found.message == f"sweep.storage={bucket}/x answers and can be written to"
