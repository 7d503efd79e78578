"""The way to a Prefect server that must be there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flows.servers.health import fetch_status
from flows.servers.plans import WORK_POOL
from flows.servers.registry import use_running_servers

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@contextmanager
def open_client(folder: Path) -> "Iterator[SyncPrefectClient]":
    """Gives a client of the Prefect server that a folder uses.

    Raises:
        ValueError: when there is no server, when it does not answer, or when it refuses.
    """
    use_running_servers(folder)
    api_url = os.environ.get("PREFECT_API_URL", "")
    check_server_answers(api_url)
    # Only now: prefect reads the environment when it is imported.
    import httpx
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            yield client
    # A server of another version makes the client raise RuntimeError.
    except (httpx.HTTPError, RuntimeError) as error:
        raise ValueError(
            f"the Prefect server at {_without_password(api_url)} did not do what was asked: {error}"
        ) from error


def check_server_answers(api_url: str, *, timeout_seconds: float = 10.0) -> None:
    """Raises ValueError when there is no Prefect server at an address, or no address."""
    if not api_url:
        raise ValueError(
            "no Prefect server runs for this folder, and PREFECT_API_URL names no other; "
            "schedules live in a server. Run: dml up --worker"
        )
    if fetch_status(f"{api_url}/health", timeout_seconds=timeout_seconds) is None:
        raise ValueError(
            f"the Prefect server at {_without_password(api_url)} (from PREFECT_API_URL) does not "
            "answer. Start it, or unset PREFECT_API_URL and run: dml up --worker"
        )


def ensure_work_pool(client: "SyncPrefectClient") -> None:
    """Makes the pool that scheduled runs wait in, unless it is there."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
    from prefect.workers.process import ProcessWorker

    try:
        client.read_work_pool(WORK_POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        pool = WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template)
        try:
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            return


def has_worker(client: "SyncPrefectClient") -> bool:
    """Returns whether a worker is there to run what is scheduled."""
    workers = client.read_workers_for_work_pool(WORK_POOL)
    return any(str(worker.status.value) == "ONLINE" for worker in workers if worker.status)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
