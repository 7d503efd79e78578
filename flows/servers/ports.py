"""Which ports are free, and who holds those that are not."""

import errno
import ipaddress
import socket

import psutil


class BusyPortError(ValueError):
    """A server cannot start because another process listens on its port."""


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_free_port(host: str) -> int:
    """Returns a port that nobody listens on at this moment."""
    with socket.socket(_family(host)) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ValueError(_tell_no_address(host, error)) from error
        return int(probe.getsockname()[1])


def check_port_is_free(port: int, *, host: str, title: str, option: str) -> None:
    """Raises BusyPortError when a server could not listen on a port.

    Args:
        port: the port wanted.
        host: the address that the server would bind.
        title: what the server is called in the message.
        option: the command's option that chooses another port.
    """
    with socket.socket(_family(host)) as probe:
        # As the servers do it: a port whose connections are merely fading out is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ValueError(_tell_no_address(host, error)) from error
            raise BusyPortError(
                f"the {title} cannot listen on port {port} of {host}: {_why(port, error)}. "
                f"Choose another port: dml up {option} {_another(port)} ({option} 0 takes a free "
                "one)."
            ) from error


def describe_holder(port: int) -> str:
    """Returns the pid and the name of the process that listens on a port, or an empty text."""
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


def _tell_no_address(host: str, error: OSError) -> str:
    return (
        f"--host must be an address of this machine, for servers to listen on it. Got {host!r} "
        f"({error.strerror}). Leave it out for 127.0.0.1."
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
