"""Keeps a second sweep of the same study from starting."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "lock.json"


class SweepIsRunning(ValueError):
    """Another process works in the folder; the message says which."""


class SweepFolderGone(ValueError):
    """The folder of a sweep was deleted under its hands."""


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Holds the only right to work in a sweep's folder; the kernel frees it with its process.

    Raises:
        SweepIsRunning: at once, when another process holds it.
        SweepFolderGone: in the place of what fails because the folder was deleted meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Opened for appending, so that a refused second sweep does not wipe the holder's name.
    with open(folder / LOCK_FILE, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SweepIsRunning(_say_who(folder)) from error
        _write_holder(folder / LOCK_FILE)
        try:
            yield
        except Exception as error:
            if (folder / LOCK_FILE).exists():
                raise
            raise SweepFolderGone(
                f"{folder} was deleted while the sweep worked in it, with what its trials had "
                "done. Run the same command again: it trains them anew."
            ) from error


def check_is_free(folder: Path) -> None:
    """Raises SweepIsRunning when another process works in a sweep's folder; holds nothing."""
    try:
        with open(folder / LOCK_FILE, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError as error:
        raise SweepIsRunning(_say_who(folder)) from error


def _write_holder(path: Path) -> None:
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
    path.write_text(json.dumps(holder) + "\n", encoding="utf-8")


def _say_who(folder: Path) -> str:
    try:
        holder = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError):
        who = "another process"
    return (
        f"{folder} is in use by {who}: two sweeps of one study would run the same trials. "
        "Wait for it, or end that process; what it finished is kept."
    )
