"""A real S3 server on loopback, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "bucket"
MADE_UP = "testing"


@contextmanager
def s3_server(
    monkeypatch: pytest.MonkeyPatch, *, port: int = 0, secret: str = MADE_UP
) -> Iterator[str]:
    """Yields the address of a server with one empty bucket; its keys are made up."""
    import boto3
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", MADE_UP)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket=BUCKET)
        yield address
    finally:
        server.stop()


@contextmanager
def s3_bucket(*, secret: str = MADE_UP) -> Iterator[str]:
    """Yields the address of an empty bucket, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patched, s3_server(patched, secret=secret) as address:
        patched.setenv("AWS_ENDPOINT_URL", address)
        yield f"s3://{BUCKET}"
