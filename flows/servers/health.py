"""Whether a server answers."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from flows.servers.access import authorization, sign_in_to_prefect
from flows.servers.ports import is_loopback
from flows.servers.record import ServerRecord


def answers(record: ServerRecord, *, timeout_seconds: float = 2.0) -> bool:
    """Returns whether a server works, or whether the worker is online in its pool."""
    if record.worker_name:
        return _is_online(record, timeout_seconds=timeout_seconds)
    return fetch_status(record.health_url, timeout_seconds=timeout_seconds) == 200


def fetch_status(
    url: str, *, timeout_seconds: float = 2.0, headers: Mapping[str, str] | None = None
) -> int | None:
    """Returns the HTTP status that an address answers with; None when nothing answers."""
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310
        with open_url(request, timeout_seconds=timeout_seconds) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return None


def _is_online(record: ServerRecord, *, timeout_seconds: float) -> bool:
    try:
        headers = authorization(sign_in_to_prefect(record))
        request = urllib.request.Request(  # noqa: S310
            record.health_url, data=b"{}", headers={"Content-Type": "application/json", **headers}
        )
        with open_url(request, timeout_seconds=timeout_seconds) as response:
            workers = json.load(response)
    except (OSError, ValueError):
        return False
    return any(
        worker["name"] == record.worker_name
        and worker["status"] == "ONLINE"
        # The one before it had the same name, and counts as online for a while after its end.
        and datetime.fromisoformat(worker["last_heartbeat_time"]).timestamp() > record.created
        for worker in workers
    )


def open_url(request: urllib.request.Request, *, timeout_seconds: float) -> Any:
    """Sends a request; the answer is to be closed by the caller."""
    # A proxy of the environment does not reach this machine's own loopback.
    if is_loopback(urlsplit(request.full_url).hostname or ""):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(request, timeout=timeout_seconds)
    return urllib.request.urlopen(request, timeout=timeout_seconds)  # noqa: S310
