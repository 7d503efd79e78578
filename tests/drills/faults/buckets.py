"""Faults of sweeps whose journals are in a bucket: the cluster is lost, or the bucket is away."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dml_core.trials.bucket import CHECKPOINTS, STUDIES, BucketStore
from dml_core.trials.snapshot import TRIALS
from dml_core.trials.store import LEDGER_FILE, LOCKS_FOLDER
from tests.drills.messages import BUCKET_AWAY, BUCKET_BACK
from tests.drills.plan import DrillFailed, Fault
from tests.drills.project import STUDY, change_params
from tests.drills.scene import GRACE_SECONDS, Scene
from tests.drills.servers import DrillServer
from tests.references.proxies import Proxy

AWAY_SECONDS = 15.0
"""How long a bucket is away; longer than an epoch and than two heartbeats of the driver."""
_BUCKET = "drill"
_KEYS = {
    "AWS_ACCESS_KEY_ID": "drill",
    "AWS_SECRET_ACCESS_KEY": "drill-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def _bucket(scene: Scene) -> Iterator[Proxy]:
    """Gives a sweep a bucket in a real S3 server on loopback, reached through a proxy."""
    import boto3

    server = DrillServer(
        scene.folder.parent, ["-m", "moto.server"], health="/moto-api/", environment={}
    )
    with server.running(), Proxy(server.port) as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        keys = {name.lower(): value for name, value in list(_KEYS.items())[:2]}
        boto3.client(
            "s3", endpoint_url=server.address, region_name="us-east-1", **keys
        ).create_bucket(Bucket=_BUCKET)
        scene.sweep.environment |= {**_KEYS, "AWS_ENDPOINT_URL": address}
        change_params(scene.folder, {"sweep.storage": f"s3://{_BUCKET}/trials"})
        scene.sweep.bucket = _open_bucket(server.address)
        yield proxy
        _copy_to_project(scene)


def _open_bucket(address: str) -> BucketStore:
    """Opens the bucket for the drill itself, whose environment stays as it is."""
    import pytest

    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**_KEYS, "AWS_ENDPOINT_URL": address}.items():
            patched.setenv(name, value)
        store = BucketStore(f"s3://{_BUCKET}/trials")
        # The client reads the environment at its first request.
        store.list_keys()
    return store


def _copy_to_project(scene: Scene) -> None:
    """Copies the bucket to where a sweep without one has its journals, for the same checks."""
    store = scene.sweep.bucket
    assert store is not None, "the sweep had a bucket"
    objects, trials = store._objects, scene.sweep.trials_folder
    places = {TRIALS: "", CHECKPOINTS: "checkpoints"}
    for kind, folder in places.items():
        names = list(objects.list_objects(kind))
        for path, content in objects.read_many(f"{kind}/{name}" for name in names).items():
            _, key, name = path.split("/")
            _write(trials / key / folder / name, content)
            _write(trials / LOCKS_FOLDER / key, b"")
    lines = objects.read_many(
        f"{STUDIES}/{STUDY}/{name}" for name in objects.list_objects(f"{STUDIES}/{STUDY}")
    )
    text = b"".join(lines[name] for name in sorted(lines))
    _write(scene.sweep.working_folder / LEDGER_FILE, text)
    scene.sweep.bucket = None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _lose_cluster(scene: Scene) -> str:
    """Kills driver and cluster at once; another host has the project as it was, and the bucket."""
    with _bucket(scene):
        spare = scene.folder.with_name(f"{scene.folder.name}-spare")
        shutil.copytree(scene.folder, spare)
        scene.sweep.start()
        scene.reach_moment()
        scene.sweep.poll_family()
        scene.sweep.close()
        scene.check_processes_gone()
        scene.record_trials()
        for folder in (scene.folder, scene.sweep.temporary):
            shutil.rmtree(folder)
        scene.sweep.temporary.mkdir()
        spare.rename(scene.folder)
        return f"{scene.resume()}, on another host"


def _take_bucket_away(scene: Scene) -> str:
    with _bucket(scene) as proxy:
        scene.sweep.start()
        scene.reach_moment()
        proxy.go_away()
        time.sleep(AWAY_SECONDS)
        proxy.come_back()
        recovery = scene.finish()
        for text in (BUCKET_AWAY, BUCKET_BACK):
            scene.check_printed(text)
        if any(attempts > 1 for attempts, _ in scene.sweep.ended().values()):
            raise DrillFailed("a trial was started again")
        if left := scene.sweep.family.left(seconds=GRACE_SECONDS):
            raise DrillFailed(f"the process {left[0]} is left")
        return recovery


CLUSTER_LOST_FAULT = Fault(
    "cluster-lost",
    "kill -9 of the command and its whole cluster, of which only a bucket survives",
    _lose_cluster,
    starts_servers=True,
)
BUCKET_AWAY_FAULT = Fault(
    "bucket-away",
    "the bucket with the journals does not answer for a while",
    _take_bucket_away,
    # Workers have the environment of their cluster, with the keys of the bucket.
    starts_servers=True,
)
