"""Seconds until a driver knows all trials of a bucket: an S3 server on loopback.

python -m benchmarks.bucket_trials [TRIALS]

The server is a Python program on the same machine, so most of the time is its own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dml_core.trials.journal import Journal
from dml_core.trials.store import open_store

TRIALS = 10_000
EPOCHS = 12
BUCKET = "bench"
_EPOCH = {
    "train_loss": 1.25,
    "learning_rates": {"trunk": 0.001, "head": 0.001, "proxies": 0.01},
    "validation": {f"recall_at_{k}": 0.5 for k in (1, 2, 4, 8)} | {"map_at_r": 0.25},
    "train_seconds": 1.5,
    "device": "cpu of a kind",
    "attempt": 1,
}


def main(count: int) -> None:
    """Fills a bucket and reads it as a first driver, and as one that finds the index."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }
        _fill(count)
        location = f"s3://{BUCKET}/trials"
        print(f"{count:,} trials of {EPOCHS} epochs, {3 * count:,} objects")
        _time("first driver: each object is read once", lambda: _read_all(location, count))
        _time("next driver: one listing and the index", lambda: _read_all(location, count))
    finally:
        server.stop()


def _fill(count: int) -> None:
    """Puts the objects into the server itself: uploading them is not measured."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")
    spec = json.dumps({"config": {f"section.key_{n}": n for n in range(120)}, "libraries": {}})
    lines = [json.dumps({"epoch": epoch, **_EPOCH}) for epoch in range(1, EPOCHS + 1)]
    texts = {
        "spec.json": spec,
        "epochs.jsonl": "\n".join(lines) + "\n",
        "result.json": json.dumps({"outcome": "finished", "reason": "", "epoch": EPOCHS}),
    }
    for number in range(count):
        for name, text in texts.items():
            backend.put_object(BUCKET, f"trials/trials/{number:016x}/{name}", text.encode())


def _read_all(location: str, count: int) -> None:
    store = open_store(location)
    with store.hold():
        keys = store.list_keys()
        ended = sum(Journal(store, key).has_ended() for key in keys)
        epochs = sum(len(Journal(store, key).epochs()) for key in keys)
    assert (ended, epochs) == (count, count * EPOCHS)


def _time(what: str, measured: Callable[[], None]) -> None:
    started = time.perf_counter()
    measured()
    print(f"{what}: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS)
