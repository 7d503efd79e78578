"""Asks servers over HTTP, with a limit for the time and without a proxy for this machine."""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from flows.servers.health import open_url


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    content: Any = None
    """The JSON of the answer; None where it was none."""
    clock_offset_seconds: float = 0.0
    """How far the server's clock is ahead, by the Date that it sent; whole seconds."""


class NoAnswer(Exception):
    """Nobody answered; the message says why."""


def ask(
    method: str,
    url: str,
    *,
    timeout_seconds: float,
    content: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Sends a request and returns the answer, also where it is a refusal.

    Raises:
        NoAnswer: when there is none.
    """
    if not url.startswith(("http://", "https://")):
        raise NoAnswer("its address must start with http:// or https://")
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(  # noqa: S310
        url,
        data=data,
        method=method,
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    try:
        with open_url(request, timeout_seconds=timeout_seconds) as response:
            return Answer(response.status, _read(response), _compare(response.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _read(error), _compare(error.headers))
    except (OSError, ValueError) as error:
        raise NoAnswer(str(getattr(error, "reason", error))) from error


def _read(response: Any) -> Any:
    try:
        return json.loads(response.read(1 << 20) or b"null")
    except (OSError, ValueError):
        return None


def _compare(headers: Any) -> float:
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp() - time.time()
    except (TypeError, ValueError):
        return 0.0
