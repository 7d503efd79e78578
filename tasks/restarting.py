"""Starts the running command anew in its own process, where a library cannot be revived."""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

MAX_RESTARTS = 3
"""Of one command, as often as a trial's worker is restarted by default."""
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
    """Lets `restart` replace this process from here on by a new start of the same command.

    For commands alone, before they change their environment: a notebook or a test that imports the
    project must not be replaced.
    """
    _command[:] = [_Command(tuple(sys.orig_argv), dict(os.environ), os.getcwd())]


def note_stop() -> None:
    """Takes note that a signal asked this process to end: nothing may replace it any more."""
    _command.clear()
    _is_stopping.set()


def is_stopping() -> bool:
    """Returns whether a signal asked this process to end."""
    return _is_stopping.is_set()


def can_restart() -> bool:
    """Returns whether this process may be replaced once more."""
    return bool(_command) and count_restarts() < MAX_RESTARTS


def count_restarts() -> int:
    """Returns how often this command was started anew."""
    return int(os.environ.get(_COUNT, "0"))


def restart() -> NoReturn:
    """Replaces this process by the same command with its first environment, from any thread.

    Number, parent and terminal stay. What the process held (locks, pipes) is released as by
    kill -9, so its guardian ends what it had started.
    """
    (command,) = _command
    _leave_terminal()
    os.chdir(command.folder)
    environment = {**command.environment, _COUNT: str(count_restarts() + 1)}
    os.execve(sys.executable, command.arguments, environment)  # noqa: S606


def exit_at_once(code: int) -> NoReturn:
    """Ends this process from any thread, also where the main thread never returns."""
    _leave_terminal()
    os._exit(code)


def _leave_terminal() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            if stream.isatty():
                # A live table hides the cursor until its own end.
                stream.write(_SHOW_CURSOR)
            stream.flush()
