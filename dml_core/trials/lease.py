"""The right to drive the sweeps of a bucket: an object that its holder writes again and again.

A holder that is silent for `LEASE_SECONDS` is dead, and the next driver takes over. Silence is
measured by the waiting driver's own clock, so the clocks of two machines need not agree.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dml_core.trials.objects import BucketUnavailable, ObjectFolder

LEASE_FILE = "lease.json"
LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_TOKENS: set[str] = set()
"""Of this program's leases. A command that restarts in its own process keeps its number."""


class BucketInUse(ValueError):
    """Another driver works on the bucket; the message names it."""


class Lease:
    """The lease of this process."""

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self._token = uuid.uuid4().hex
        _TOKENS.add(self._token)
        self._beats = 0
        self._since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        self._taken_by = ""
        self._is_over = threading.Event()

    def take(self) -> None:
        """Takes the lease, also that of a dead driver.

        Raises:
            BucketInUse: when its holder is alive.
        """
        while not self._objects.create(LEASE_FILE, self._content()):
            tag = self._wait_until_silent()
            if tag and self._objects.replace(LEASE_FILE, self._content(), tag=tag):
                break
        self.check_now()

    def check(self) -> None:
        """Raises BucketInUse if another driver has taken over, as far as is known."""
        if self._taken_by:
            raise BucketInUse(self._taken_by)

    def check_now(self) -> None:
        """Raises BucketInUse if another driver has taken over; makes a request."""
        holder = self._read()
        if holder.get("token") != self._token:
            self._taken_by = (
                f"{self._objects.location} was taken over by {_name(holder)}, since this process "
                f"was silent for {LEASE_SECONDS:g} s. It stops; what is finished is kept."
            )
        self.check()

    def keep(self) -> None:
        """Writes the lease again until it is released or lost; runs in a thread."""
        # A beat must not wait for long: the next one tries again.
        self._objects = self._objects.impatient(BEAT_SECONDS)
        while not self._is_over.wait(BEAT_SECONDS):
            # The sweep's own requests report a bucket that is away.
            with suppress(BucketUnavailable):
                try:
                    self.check_now()
                except BucketInUse:
                    return
                self._beats += 1
                self._objects.write(LEASE_FILE, self._content())

    def release(self) -> None:
        """Ends the lease, so that the next driver need not wait."""
        self._is_over.set()
        with suppress(BucketUnavailable):
            if self._read().get("token") == self._token:
                self._objects.remove([LEASE_FILE])

    def _wait_until_silent(self) -> str | None:
        """Returns the tag of a dead driver's lease; None if the lease is gone."""
        tag, holder = self._objects.find_tag(LEASE_FILE), self._read()
        if _is_dead(holder):
            return tag
        started = time.monotonic()
        while time.monotonic() - started < LEASE_SECONDS:
            time.sleep(_LOOK_SECONDS)
            asked = time.monotonic()
            now = self._objects.find_tag(LEASE_FILE)
            if now is None:
                return None
            if now != tag:
                raise BucketInUse(
                    f"sweep.storage={self._objects.location} is in use by {_name(holder)}: two "
                    "sweeps in one bucket would run the same trials. Wait for it, end that "
                    "process, or choose another prefix; what it finished is kept."
                )
            if time.monotonic() - asked > BEAT_SECONDS:
                # The bucket was away: its holder could not write either.
                started = time.monotonic()
        return tag

    def _read(self) -> dict[str, Any]:
        try:
            holder = json.loads(self._objects.read(LEASE_FILE) or b"{}")
        except ValueError:
            return {}
        return holder if isinstance(holder, dict) else {}

    def _content(self) -> bytes:
        holder = {
            "token": self._token,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": self._since,
            "machine": _name_machine(),
            "started": _find_start(os.getpid()),
            "beats": self._beats,
        }
        return json.dumps(holder).encode()


@contextmanager
def held_lease(objects: ObjectFolder) -> Iterator[Lease]:
    """Holds the lease of a bucket within the block.

    Raises:
        BucketInUse: when a living driver holds it.
    """
    lease = Lease(objects)
    lease.take()
    thread = threading.Thread(target=lease.keep, name="lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        lease.release()
        thread.join(BEAT_SECONDS)


def _name(holder: dict[str, Any]) -> str:
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on {holder.get('host')}, since {holder.get('since')}"


def _is_dead(holder: dict[str, Any]) -> bool:
    """Returns whether the holder was a program of this machine that has ended."""
    machine, pid = _name_machine(), int(holder.get("pid", 0))
    if not machine or holder.get("machine") != machine:
        return False
    was_replaced = pid == os.getpid() and holder.get("token") not in _TOKENS
    return was_replaced or _find_start(pid) != holder.get("started")


def _name_machine() -> str:
    """Returns a name of this boot and its processes' numbers; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _find_start(pid: int) -> str:
    """Returns when a process started, in ticks of its machine; empty if there is none."""
    try:
        # The name in parentheses may hold anything; the start is the 20th field after it.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = fields.rpartition(")")[2].split()
        return "" if state == "Z" else rest[18]
    except (OSError, IndexError, ValueError):
        return ""
