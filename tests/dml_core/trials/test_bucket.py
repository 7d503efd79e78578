"""The store in a bucket, over the S3 protocol and in memory."""

import uuid
from pathlib import Path

import pytest

from dml_core.trials.bucket import PART_BYTES, BucketStore, TrialTaken
from dml_core.trials.store import open_store
from tests.references.s3_servers import s3_bucket


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket() as address:
        yield address


@pytest.fixture(params=["memory", "s3"])
def location(request, bucket):
    root = bucket if request.param == "s3" else "memory://"
    return f"{root}/{uuid.uuid4().hex}"


@pytest.fixture
def store(location):
    return open_store(location)


def test_an_address_opens_a_bucket_and_its_files_are_read_from_anywhere(store, location):
    assert isinstance(store, BucketStore)
    assert store.location == location
    assert store.list_keys() == []
    assert store.read("k", "result.json") is None
    assert store.changed_at("k", "result.json") is None
    store.write("k", "result.json", "ä\n")
    store.write("a", "spec.json", "{}")
    elsewhere = open_store(location)
    assert elsewhere.read("k", "result.json") == "ä\n"
    assert elsewhere.changed_at("k", "result.json") > 0
    assert elsewhere.list_keys() == ["a", "k"]


def test_lines_are_added_by_the_next_process_too(store, location):
    with store.lock("k"):
        store.append("k", "epochs.jsonl", "1")
        store.append("k", "epochs.jsonl", "2")
    later = open_store(location)
    with later.lock("k"):
        later.append("k", "epochs.jsonl", "3")
    assert store.read("k", "epochs.jsonl") == "1\n2\n3\n"


def test_the_newest_worker_owns_a_trial_and_an_earlier_one_writes_no_more(store, location):
    other = open_store(location)
    with store.lock("k"):
        store.append("k", "epochs.jsonl", "1")
        with other.lock("k"):
            other.append("k", "epochs.jsonl", "2")
            with pytest.raises(TrialTaken, match="another worker has begun trial k"):
                store.append("k", "epochs.jsonl", "of a lost node")
            with pytest.raises(TrialTaken):
                store.write_checkpoint("k", "epoch_000002.pt", b"of a lost node")
    assert other.read("k", "epochs.jsonl") == "1\n2\n"
    assert other.list_checkpoints("k") == []


def test_a_stale_read_does_not_shorten_what_its_only_writer_has_written(store, monkeypatch):
    with store.lock("k"):
        store.append("k", "epochs.jsonl", "1")
        monkeypatch.setattr(store, "read", lambda key, name: None)
        store.append("k", "epochs.jsonl", "2")
        monkeypatch.undo()
    assert store.read("k", "epochs.jsonl") == "1\n2\n"


def test_a_removed_trial_leaves_no_object(store):
    for key in ("a", "b"):
        store.write(key, "spec.json", "{}")
        store.write_checkpoint(key, "epoch_000001.pt", b"x")
    store.remove("a")
    store.remove("b", "missing")
    assert store.list_keys() == ["b"]
    assert (store.list_checkpoints("a"), store.list_checkpoints("b")) == ([], ["epoch_000001.pt"])


def test_the_lines_of_a_ledger_are_kept_in_parts_and_in_order(store, location):
    lines = [f"{number} {'x' * (PART_BYTES // 3)}" for number in range(8)]
    log = store.open_log(Path("study"))
    assert log.read() == []
    for line in lines[:5]:
        log.append(line)
    # Another driver, later and elsewhere.
    log = open_store(location).open_log(Path("elsewhere") / "study")
    assert log.read() == lines[:5]
    for line in lines[5:]:
        log.append(line)
    assert store.open_log(Path("study")).read() == lines
    assert log.read_others() == []
    assert [text[:2] for text in store.open_log(Path("other")).read_others()] == ["0 ", "3 ", "6 "]


def fill(store, count):
    for number in range(count):
        for name in ("spec.json", "epochs.jsonl", "result.json"):
            store.write(f"k{number:04d}", name, f"{name} of {number}")


class Requests:
    """Counts the requests of a store's objects."""

    def __init__(self, store, monkeypatch):
        self.count = 0
        repeat = store._objects._repeat

        def counted(request):
            self.count += 1
            return repeat(request)

        monkeypatch.setattr(store._objects, "_repeat", counted)


def test_a_driver_reads_all_trials_with_a_few_requests(location, monkeypatch):
    fill(open_store(location), 30)
    first, second = open_store(location), open_store(location)
    for store in (first, second):
        requests = Requests(store, monkeypatch)
        with store.hold():
            for number in range(30):
                assert store.read(f"k{number:04d}", "epochs.jsonl") == f"epochs.jsonl of {number}"
                assert store.changed_at(f"k{number:04d}", "result.json") > 0
            assert store.read("k0007", "missing") is None
            assert store.read("unknown", "result.json") is None
            assert len(store.list_keys()) == 30
        # Some of them are those of the lease.
        assert requests.count <= 12
    # The second driver found all contents in the index of the first.
    assert len(second._objects.list_objects("index")) == 1


def test_an_index_of_earlier_content_is_not_used(store, location):
    fill(store, 2)
    with open_store(location).hold():
        pass
    store.write("k0001", "result.json", "another attempt")
    driver = open_store(location)
    with driver.hold():
        assert driver.read("k0000", "result.json") == "result.json of 0"
        assert driver.read("k0001", "result.json") == "another attempt"


def test_a_driver_reads_what_its_workers_write(store, location):
    fill(store, 1)
    driver, worker = open_store(location), open_store(location)
    with driver.hold():
        driver.write("new", "spec.json", "{}")
        for key in ("new", "k0000"):
            driver.hand_out(key)
            worker.write(key, "result.json", "now")
            assert driver.read(key, "result.json") == "now"
            driver.take_back(key)
        assert driver.list_keys() == ["k0000", "new"]
    later = open_store(location)
    with later.hold():
        assert later.read("new", "result.json") == later.read("k0000", "result.json") == "now"
