"""Notices that a Ray cluster is gone as a whole, and starts the command anew or ends it.

Ray 2.60 gives a driver no way on: calls to a GCS that is gone block in C++, deaf to signals and
exceptions, and after a minute Ray ends the process without a word of what to do.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from tasks.restarting import (
    MAX_RESTARTS,
    can_restart,
    count_restarts,
    exit_at_once,
    is_stopping,
    restart,
)

LOGGER = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.5
SILENT_SECONDS = 45.0
"""A joined cluster may be away for so long; after 60 s Ray ends the process."""
EXIT_CODE = 2
_LOCAL_SERVERS = ("gcs_server", "raylet")

_lost = threading.Event()


def is_cluster_lost() -> bool:
    """Returns whether the watched cluster is known to be gone: no trial fails because of that."""
    return _lost.is_set()


@contextmanager
def watched_local_cluster() -> Iterator[None]:
    """Watches the cluster that this process has started.

    Where its GCS or its raylet is gone, the command is started anew, `MAX_RESTARTS` times. It
    starts another cluster and resumes from the trials' journals, as after kill -9.
    """
    # After a restart the dead of the cluster before are still children of this process.
    children = filter(_is_alive, psutil.Process().children())
    servers = [child for child in children if _name_of(child) in _LOCAL_SERVERS]

    def lose_local() -> None:
        what = "the local Ray cluster was killed"
        if can_restart():
            LOGGER.warning(
                "%s. The command restarts with a new one (%d of %d) and resumes from the last "
                "epochs.", what, count_restarts() + 1, MAX_RESTARTS,
            )  # fmt: skip
            restart()
        often = f" after {count_restarts()} restarts" if count_restarts() else ""
        _end(f"{what}{often}, so the sweep was stopped; all finished trials and epochs are kept.")

    with _watching(lambda: not all(map(_is_alive, servers)), lose_local):
        yield


@contextmanager
def watched_joined_cluster(address: str) -> Iterator[None]:
    """Watches a cluster that others run; where it is silent for too long, the command ends.

    Args:
        address: of its GCS, as host:port.
    """
    answered = [time.monotonic()]

    def is_silent() -> bool:
        if _answers(address):
            answered[0] = time.monotonic()
        return time.monotonic() - answered[0] > SILENT_SECONDS

    def lose_joined() -> None:
        _end(
            f"the Ray cluster at {address} has not answered for {SILENT_SECONDS:g} s, so the sweep "
            "was stopped; all finished trials and epochs are kept. Start the cluster again."
        )

    with _watching(is_silent, lose_joined):
        yield


@contextmanager
def _watching(is_gone: Callable[[], bool], lose: Callable[[], None]) -> Iterator[None]:
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LOOKS):
            # A Ctrl-C may reach the cluster too; whoever stops a command wants no other one.
            if is_gone() and not is_stopping():
                _lost.set()
                lose()

    watcher = threading.Thread(target=watch, name="ray-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _end(message: str) -> None:
    # No exception reaches a main thread that is blocked in C++.
    LOGGER.error("dml: %s The same command resumes.", message)
    exit_at_once(EXIT_CODE)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError:
        return False
    return True


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
