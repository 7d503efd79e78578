"""A file of events on their way to MLflow: nothing is lost with a killed process."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Event = dict[str, Any]

MAX_SPOOL_BYTES = 8 * 2**20
"""A spool with nothing left to send starts again from empty above this size."""


class Spool:
    """Appends events as lines of JSON and remembers how many of them have arrived.

    The first line says whose events these are. Every line is handed to the system at once, so
    that it outlives the process; only what is read at a time is held in memory.
    """

    def __init__(self, path: Path, *, header: Mapping[str, Any]) -> None:
        self.path = path
        self._sent_path = path.with_suffix(".sent")
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        if read_header(path) is None:
            self._begin(header)
        self._header = dict(header)
        self._sent = self._read_sent()

    def append(self, event: Event) -> None:
        """Adds an event at the end."""
        with self._lock, self.path.open("ab", buffering=0) as file:
            end, line = file.tell(), _line(event)
            try:
                # Without a buffer a full disk may take a part and say so only by the count.
                while line:
                    line = line[file.write(line) :]
            except OSError:
                # Half a line would spoil the next one, and all after it would never be sent.
                file.truncate(end)
                raise

    def read(self, *, limit: int) -> tuple[list[Event], int]:
        """Returns up to `limit` events that have not arrived, and where they end in the file."""
        events: list[Event] = []
        with self._lock, self.path.open("rb") as file:
            file.seek(self._sent)
            if self._sent == 0:
                file.readline()
            while len(events) < limit and (line := file.readline()).endswith(b"\n"):
                events.append(json.loads(line))
            return events, file.tell()

    def acknowledge(self, position: int) -> None:
        """Remembers that all events before a position have arrived."""
        with self._lock:
            self._sent = position
            if position >= MAX_SPOOL_BYTES and position == self.path.stat().st_size:
                self._begin(self._header)
                self._sent = 0
            _replace(self._sent_path, str(self._sent).encode())

    def is_drained(self) -> bool:
        """Returns whether every event has arrived."""
        return not self.read(limit=1)[0]

    def remove(self) -> None:
        """Removes the file and what belongs to it."""
        # In this order a kill in between sends everything again, which changes nothing.
        self._sent_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _begin(self, header: Mapping[str, Any]) -> None:
        self._sent_path.unlink(missing_ok=True)
        _replace(self.path, _line(dict(header)))

    def _read_sent(self) -> int:
        try:
            sent = int(self._sent_path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0
        return sent if sent <= self.path.stat().st_size else 0


def read_header(path: Path) -> dict[str, Any] | None:
    """Returns whose events a file holds; None where it is missing or empty."""
    try:
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.readline())
            return header
    except (FileNotFoundError, ValueError):
        return None


def _cut_torn_line(path: Path) -> None:
    """Removes the end of a file after its last line break: a writer was killed there."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _line(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":"), default=str).encode() + b"\n"


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(content)
    os.replace(temporary, path)
