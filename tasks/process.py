"""The process of a command: its garbage collection, its restart in place, and its end."""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

_NEW_OBJECTS = 50_000
"""Allocations between two collections. The default of 700 suits programs that import little."""


def collect_garbage_rarely() -> None:
    """Raises the threshold of the cyclic garbage collector, and skips its last collection.

    Prefect, MLflow, Ray and torch create half a million objects. Collections take a sixth of the
    time of their import, and the collection at exit, which frees nothing, another second.
    """
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)


MAX_RESTARTS = 3
"""Limit for one command; the default limit of a trial's worker is the same."""
_COUNT = "DML_COMMAND_RESTARTS"
_SHOW_CURSOR = "\x1b[?25h"


@dataclass(frozen=True)
class _Command:
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str


_command: list[_Command] = []
"""How this process was called; empty where it must not be replaced."""
_is_stopping = threading.Event()


def allow_restarts() -> None:
    """Allows `restart` to replace this process by a new start of the same command.

    Only commands call it, before they change their environment: a notebook or a test that imports
    the project must not be replaced.
    """
    _command[:] = [_Command(tuple(sys.orig_argv), dict(os.environ), os.getcwd())]


def note_stop() -> None:
    """Notes that a signal ends this process, so that nothing replaces it any more."""
    _command.clear()
    _is_stopping.set()


def is_stopping() -> bool:
    """Returns whether a signal ends this process."""
    return _is_stopping.is_set()


def can_restart() -> bool:
    """Returns whether this process may be replaced once more."""
    return bool(_command) and count_restarts() < MAX_RESTARTS


def count_restarts() -> int:
    """Returns how often this command was restarted."""
    return int(os.environ.get(_COUNT, "0"))


def restart() -> NoReturn:
    """Replaces this process by the same command with its first environment, from any thread.

    Pid, parent and terminal stay. Its locks and pipes are released as by kill -9, so its guardian
    ends the processes that it started.
    """
    (command,) = _command
    _leave_terminal()
    os.chdir(command.folder)
    environment = {**command.environment, _COUNT: str(count_restarts() + 1)}
    os.execve(sys.executable, command.arguments, environment)  # noqa: S606


def exit_at_once(code: int) -> NoReturn:
    """Ends this process from any thread, even where the main thread never returns."""
    _leave_terminal()
    os._exit(code)


def _leave_terminal() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            if stream.isatty():
                # A live table hides the cursor until it ends.
                stream.write(_SHOW_CURSOR)
            stream.flush()
