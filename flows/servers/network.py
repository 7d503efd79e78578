"""Ports and HTTP: which ports are free, which process holds the others, what a server answers."""

import errno
import ipaddress
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import psutil

_LARGEST_ANSWER_BYTES = 1 << 20


class BusyPortError(ValueError):
    """A server cannot start because another process listens on its port."""


class NoAnswer(Exception):
    """The server did not answer; the message gives the reason."""


@dataclass(frozen=True)
class Answer:
    """The answer of a server to an HTTP request."""

    status: int
    content: Any = None
    """The parsed JSON; None if the answer is not JSON."""
    clock_offset_seconds: float = 0.0
    """How far the server's clock is ahead, from its Date header; whole seconds."""


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_free_port(host: str) -> int:
    """Returns a port on which no process listens at this moment."""
    with socket.socket(_family(host)) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ValueError(_describe_bad_host(host, error)) from error
        return int(probe.getsockname()[1])


def check_port_is_free(port: int, *, host: str, title: str, option: str) -> None:
    """Raises BusyPortError if a server could not listen on a port.

    Args:
        port: the port wanted.
        host: the address that the server would bind.
        title: the server's name in the message.
        option: the command's option that chooses another port.
    """
    with socket.socket(_family(host)) as probe:
        # As the servers do: a port with connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ValueError(_describe_bad_host(host, error)) from error
            raise BusyPortError(
                f"the {title} cannot listen on port {port} of {host}: {_why(port, error)}. "
                f"Choose another port: dml up {option} {_another(port)} ({option} 0 takes a free "
                "one)."
            ) from error


def describe_holder(port: int) -> str:
    """Returns the pid and the name of the process that listens on a port; empty if unknown."""
    try:
        connections = psutil.net_connections(kind="inet")
    except psutil.AccessDenied:
        return ""
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        if connection.laddr.port == port and connection.pid:
            return _name_process(connection.pid)
    return ""


def ask(
    method: str,
    url: str,
    *,
    timeout_seconds: float,
    content: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Sends a request, with `content` as JSON, and returns the answer, refusals included.

    Raises:
        NoAnswer: if there is none.
    """
    if not url.startswith(("http://", "https://")):
        raise NoAnswer("its address must start with http:// or https://")
    request = urllib.request.Request(  # noqa: S310
        url,
        data=None if content is None else json.dumps(content).encode(),
        method=method,
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    try:
        with _open(request, timeout_seconds=timeout_seconds) as response:
            return _read(response.status, response)
    except urllib.error.HTTPError as error:
        with error:
            return _read(error.code, error)
    except (OSError, ValueError) as error:
        raise NoAnswer(str(getattr(error, "reason", error))) from error


def fetch_status(
    url: str, *, timeout_seconds: float = 2.0, headers: Mapping[str, str] | None = None
) -> int | None:
    """Returns the HTTP status of an address; None if nothing answers."""
    try:
        return ask("GET", url, timeout_seconds=timeout_seconds, headers=headers).status
    except NoAnswer:
        return None


def _open(request: urllib.request.Request, *, timeout_seconds: float) -> Any:
    # A proxy of the environment does not reach this machine's own loopback.
    if is_loopback(urlsplit(request.full_url).hostname or ""):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(request, timeout=timeout_seconds)
    return urllib.request.urlopen(request, timeout=timeout_seconds)  # noqa: S310


def _read(status: int, response: Any) -> Answer:
    try:
        content = json.loads(response.read(_LARGEST_ANSWER_BYTES) or b"null")
    except (OSError, ValueError):
        content = None
    try:
        offset = parsedate_to_datetime(response.headers["Date"]).timestamp() - time.time()
    except (TypeError, ValueError):
        offset = 0.0
    return Answer(status, content, offset)


def _name_process(pid: int) -> str:
    # The name alone: a command line may hold passwords.
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"


def _why(port: int, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "this user may not open it"
    return f"{describe_holder(port) or 'another program'} listens there"


def _another(port: int) -> int:
    return port + 1 if 1024 <= port < 65535 else 8000 + port % 1024


def _describe_bad_host(host: str, error: OSError) -> str:
    return (
        f"--host must be an address of this machine, for servers to listen on it. Got {host!r} "
        f"({error.strerror}). Leave it out for 127.0.0.1."
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
