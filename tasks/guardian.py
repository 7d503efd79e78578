"""Lets nothing outlive this process, however it ends: a small process beside it cleans up."""

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

MARK = "DML_GUARDED_BY"
"""What every process that is started from here on has in its environment: the folder's path."""

_SCRIPT = Path(__file__).with_name("guardian_process.py")
_LONGEST_BASE = 24
"""Ray's sockets lie 75 characters deep in the folder, and their paths may have some 100."""


def guarded_folder() -> Path:
    """Returns this process's folder for temporary files; the first call begins the guard.

    When this process ends, by itself or by kill -9, the guardian ends what it started since then
    and removes the folder. That matters for servers that would go on without it: Prefect's own
    for ever, and those of Ray for the minute in which they try to report to each other.
    """
    return _guard()[0]


def remember_processes() -> None:
    """Lets the guardian take note of all processes that this one has started.

    Some write their title over their environment, and are not known by that later.
    """
    pipe = _guard()[1]
    pipe.write(b"look\n")
    pipe.flush()


@cache
def _guard() -> tuple[Path, IO[bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="dml-", dir=_choose_base()))
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    guardian = subprocess.Popen(
        [sys.executable, "-I", str(_SCRIPT), MARK, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for this process alone.
        start_new_session=True,
    )
    assert guardian.stdin is not None
    os.environ[MARK] = str(folder)
    atexit.register(_dismiss, guardian)
    return folder, guardian.stdin


def _choose_base() -> str:
    chosen = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    is_usable = len(chosen) <= _LONGEST_BASE or not Path("/tmp").is_dir()  # noqa: S108
    return chosen if is_usable else "/tmp"  # noqa: S108


def _dismiss(guardian: subprocess.Popen[bytes]) -> None:
    # Closing its input tells the guardian that this process has ended.
    guardian.communicate()
