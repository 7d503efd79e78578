"""The proxy of deploy/proxy on this machine, with a certificate of its own issuer."""

import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.servers.network import find_free_port
from tests.references.deployed_files import DEPLOY

NAME = "localhost"
"""A host name that every machine resolves."""


@dataclass(frozen=True)
class Proxy:
    """A running proxy before a Prefect and an MLflow server."""

    prefect: str
    mlflow: str
    """Their addresses with TLS."""
    root: Path
    """Certificate that clients must trust."""
    log: Path

    @property
    def trust(self) -> ssl.SSLContext:
        """What makes Python trust the proxy."""
        return ssl.create_default_context(cafile=str(self.root))

    @property
    def variables(self) -> dict[str, str]:
        """What makes programs trust it: Python, httpx and requests."""
        return dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(self.root))


@contextmanager
def tls_proxy(folder: Path, *, prefect: str, mlflow: str) -> Iterator[Proxy]:
    """Yields a running proxy before two servers; skips the test if Caddy is not installed."""
    caddy = shutil.which("caddy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if caddy is None:
        pytest.skip("no Caddy: install the locked packages (make setup)")
    ports = [find_free_port("127.0.0.1") for _ in range(2)]
    variables = {
        "DML_PUBLIC_NAME": NAME,
        "DML_PROXY_ISSUER": "internal",
        "DML_PROXY_STATE": str(folder / "proxy"),
        "DML_PREFECT_PORT": str(urlsplit(prefect).port),
        "DML_MLFLOW_PORT": str(urlsplit(mlflow).port),
        "DML_PREFECT_HTTPS_PORT": str(ports[0]),
        "DML_MLFLOW_HTTPS_PORT": str(ports[1]),
    }
    log = folder / "proxy.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [caddy, "run", "--adapter", "caddyfile", "--config", str(DEPLOY / "proxy/Caddyfile")],
            env={**os.environ, **variables}, stdout=output, stderr=output,
        )  # fmt: skip
    proxy = Proxy(
        *(f"https://{NAME}:{port}" for port in ports),
        root=folder / "proxy/pki/authorities/local/root.crt",
        log=log,
    )
    try:
        deadline = time.monotonic() + 60
        while not _serves(proxy):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield proxy
    finally:
        process.terminate()
        process.wait(timeout=30)


def _serves(proxy: Proxy) -> bool:
    from tests.references.server_routes import ask

    try:
        urls = (f"{proxy.prefect}/api/health", f"{proxy.mlflow}/health")
        return all(ask(url, trusts=proxy.trust)[0] == 200 for url in urls)
    except OSError:
        return False
