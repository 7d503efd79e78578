"""Sweeps that share nothing but a bucket: killed on one host, resumed on another."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dml_core.training.checkpoint import load_checkpoint
from dml_core.trials.lease import BucketInUse
from dml_core.trials.store import open_store
from tasks.sources import imported_tree
from tests.references.processes import kill_tree
from tests.references.s3_servers import s3_bucket
from tests.references.tiny_trials import prepare_tiny

pytestmark = pytest.mark.integration

HIDDEN = "a-value-of-the-environment"
"""The secret key of the bucket."""
DRIVER = """
import sys, time
from pathlib import Path
from tasks.sweep.run import run_sweep
from tests.references.tiny_studies import tiny_pipeline, tiny_study

study = tiny_study(Path("prepared"), Path(), training__epochs=6)
pipeline = tiny_pipeline(sweep__storage=sys.argv[1], ray__max_concurrent=2)
ended = []


def stall(*_):
    # In the middle of a trial; only the lease is kept up.
    while len(ended) >= int(sys.argv[2]):
        time.sleep(0.1)


run_sweep(
    study, pipeline, folder=Path("results/.sweeps/tiny"), on_epoch=stall, on_trial_end=ended.append
)
"""
NUM_TRIALS = 8


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket(secret=HIDDEN) as address:
        yield address


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Returns a function that makes a project with its own data, in its own folder."""
    root = tmp_path_factory.mktemp("hosts")
    prepare_tiny(root / "data")

    def make(name):
        shutil.copytree(root / "data", root / name / "prepared")
        return root / name

    return make


def start_driver(host, storage, *, stalls_after=NUM_TRIALS + 1):
    with open(host / "printed.txt", "ab") as printed:
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, storage, str(stalls_after)],
            cwd=host,
            env={**os.environ, "PYTHONPATH": str(imported_tree()), "OMP_NUM_THREADS": "1"},
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )


def finish(host, storage):
    driver = start_driver(host, storage)
    try:
        assert driver.wait(timeout=600) == 0, (host / "printed.txt").read_text()
    finally:
        kill_tree(driver.pid)
        driver.wait()


def read_rows(host):
    table = pq.read_table(host / "results/tiny/sweep/trials.parquet")
    return table.drop_columns(["train_seconds", "resumed"]).to_pylist()


def list_ended(store):
    """Returns when the result of each ended trial was written."""
    listed = store._objects.list_objects("trials").items()
    return {name: facts.changed_at for name, facts in listed if name.endswith("/result.json")}


def test_a_cluster_that_is_lost_is_resumed_by_another_with_nothing_but_the_bucket(hosts, bucket):
    undisturbed = hosts("undisturbed")
    finish(undisturbed, "")
    storage = f"{bucket}/studies/a"
    store = open_store(storage)
    first, second = hosts("first"), hosts("second")
    driver = start_driver(first, storage, stalls_after=3)
    try:
        deadline = time.monotonic() + 300
        while len(list_ended(store)) < 3:
            assert driver.poll() is None, (first / "printed.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        # A second driver, elsewhere, while the first one works.
        message = f"is in use by process {driver.pid} on "
        with pytest.raises(BucketInUse, match=message), store.hold():
            pytest.fail("two at once")
    finally:
        kill_tree(driver.pid)
        driver.wait()
    before = list_ended(store)
    assert 3 <= len(before) < NUM_TRIALS
    shutil.rmtree(first)
    finish(second, storage)
    after = list_ended(store)
    assert len(after) == NUM_TRIALS
    assert {key: after[key] for key in before} == before
    assert read_rows(second) == read_rows(undisturbed)
    winner = Path("results/tiny/sweep/winners/small-seed1/checkpoint.pt")
    mine, theirs = (load_checkpoint(host / winner) for host in (second, undisturbed))
    assert mine.best_score == theirs.best_score
    # No journal is on a disk, and no secret is in a journal, a job or a log.
    assert not list(second.glob("results/.trials/*"))
    assert not list(second.glob("results/.sweeps/tiny/trials.jsonl"))
    assert find_secret(second) == []
    # A third driver finds everything done, and needs no cluster.
    third = hosts("third")
    finish(third, storage)
    assert read_rows(third) == read_rows(undisturbed)
    assert list_ended(store) == after


def find_secret(host):
    import boto3

    client = boto3.client("s3")
    found = client.list_objects_v2(Bucket="bucket").get("Contents", [])
    objects = {
        each["Key"]: client.get_object(Bucket="bucket", Key=each["Key"])["Body"].read()
        for each in found
    }
    assert len(objects) > 3 * NUM_TRIALS
    files = {str(path): path.read_bytes() for path in host.rglob("*") if path.is_file()}
    return [name for name, content in {**objects, **files}.items() if HIDDEN.encode() in content]
