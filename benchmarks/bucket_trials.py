"""Seconds until a driver knows all trials of a bucket: an S3 server on loopback.

python -m benchmarks.bucket_trials [TRIALS]

The server is a Python program on the same machine, so most of the time is its own. Hence the time
of the listing alone, by boto3, is measured beside it.
"""

import gzip
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

from dml_core.trials.journal import Journal
from dml_core.trials.snapshot import BATCH
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


@dataclass(frozen=True)
class Read:
    """Seconds to read a bucket."""

    listing: float
    """The listing alone, by boto3."""
    driver: float
    """Until a driver knows all trials."""


def main(count: int) -> None:
    """Prints the times of a driver that finds the index, and of one that does not."""
    print(f"{count:,} ended trials of {EPOCHS} epochs, {3 * count:,} objects")
    for is_indexed, trials in ((True, count), (False, count // 10)):
        read = read_bucket(trials, is_indexed=is_indexed)
        which = "with" if is_indexed else "without"
        print(
            f"{which} the index, {trials:,} trials: {read.driver:.1f} s "
            f"(the listing alone: {read.listing:.1f} s)"
        )


def read_bucket(count: int, *, is_indexed: bool) -> Read:
    """Fills a bucket and reads it; without an index a driver reads each object once."""
    with _served(count, is_indexed=is_indexed):
        return Read(listing=_time(_list_all), driver=_time(lambda: _read_all(count)))


@contextmanager
def _served(count: int, *, is_indexed: bool) -> Iterator[None]:
    """Runs the server in another process, and points this one to it."""
    # Not forked: this process may have threads.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, count, is_indexed), daemon=True)
    process.start()
    try:
        own = {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{here.recv()}",
        }
        with mock.patch.dict(os.environ, own):
            yield
    finally:
        process.kill()
        process.join()


def _serve(there: Connection, count: int, is_indexed: bool) -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    _fill(count, is_indexed=is_indexed)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    there.send(server.get_host_and_port()[1])
    while True:
        time.sleep(3600)


def _fill(count: int, *, is_indexed: bool) -> None:
    """Puts the objects into the server itself: uploading them is not measured."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")
    lines = [json.dumps({"epoch": epoch, **_EPOCH}) for epoch in range(1, EPOCHS + 1)]
    texts = {
        "spec.json": json.dumps({"config": {f"section.key_{n}": n for n in range(120)}}),
        "epochs.jsonl": "\n".join(lines) + "\n",
        "result.json": json.dumps({"outcome": "finished", "reason": "", "epoch": EPOCHS}),
    }
    for start in range(0, count, BATCH):
        entries = {}
        for number in range(start, min(count, start + BATCH)):
            for name, text in texts.items():
                path = f"{number:016x}/{name}"
                made = backend.put_object(BUCKET, f"trials/trials/{path}", text.encode())
                entries[path] = {"tag": made.etag, "text": text}
        if is_indexed:
            content = gzip.compress(json.dumps(entries).encode(), compresslevel=3)
            backend.put_object(BUCKET, f"trials/index/{start:08d}.json.gz", content)


def _list_all() -> None:
    import boto3

    pages = boto3.client("s3").get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=BUCKET, Prefix="trials/trials/"):
        assert page["KeyCount"]


def _read_all(count: int) -> None:
    store = open_store(f"s3://{BUCKET}/trials")
    with store.hold():
        keys = store.list_keys()
        ended = sum(Journal(store, key).has_ended() for key in keys)
        epochs = sum(len(Journal(store, key).epochs()) for key in keys)
    assert (ended, epochs) == (count, count * EPOCHS)


def _time(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS)
