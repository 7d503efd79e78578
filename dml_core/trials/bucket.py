"""A store of trials in a bucket: any address of fsspec, such as s3://bucket/prefix.

    trials/KEY/        spec.json, epochs.jsonl, result.json
    checkpoints/KEY/   one object for each checkpoint
    owners/KEY         the worker that may write the trial's epochs
    studies/STUDY/     the study's ledger, in parts
    index/             the content of trials that have ended, for a quick start
    lease.json         the driver that works in the bucket

A bucket has no append: a file that grows is written whole by its only writer, and a ledger, which
grows for long, is cut into parts. The newest worker of a trial owns it. An earlier one, such as
that of a lost node, notices before it writes its next epoch.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dml_core.trials.lease import Lease, held_lease
from dml_core.trials.objects import ObjectFolder
from dml_core.trials.snapshot import TRIALS, Snapshot

CHECKPOINTS, OWNERS, STUDIES = "checkpoints", "owners", "studies"
PART_BYTES = 64 * 2**10
"""Size from which a further line of a ledger begins another part."""


class TrialTaken(Exception):
    """Another worker has begun the trial since; this one must not write to it."""


class BucketStore:
    """The trials below an address."""

    def __init__(self, location: str) -> None:
        self._objects = ObjectFolder(location)
        self._snapshot: Snapshot | None = None
        self._lease: Lease | None = None
        self._owned: dict[str, bytes] = {}
        self._grown: dict[tuple[str, str], str] = {}

    @property
    def location(self) -> str:
        """The address; it holds no credentials."""
        return self._objects.location

    def list_keys(self) -> list[str]:
        """Returns the keys of all trials, sorted."""
        if self._snapshot is not None:
            return sorted(self._snapshot.list_keys())
        return sorted({name.partition("/")[0] for name in self._objects.list_objects(TRIALS)})

    def read(self, key: str, name: str) -> str | None:
        """Returns the content of a file; None if there is none."""
        if self._snapshot is not None and self._snapshot.has(key):
            return self._snapshot.read(key, name)
        content = self._objects.read(_path(key, name))
        return None if content is None else content.decode()

    def append(self, key: str, name: str, line: str) -> None:
        """Adds a line to a file.

        Raises:
            TrialTaken: when another worker has begun the trial since this one locked it.
        """
        self._check_owner(key)
        text = self._grown.get((key, name))
        if text is None:
            text = self.read(key, name) or ""
        self.write(key, name, f"{text}{line}\n")

    def write(self, key: str, name: str, text: str) -> None:
        """Replaces a file."""
        self._objects.write(_path(key, name), text.encode())
        # Reading its own last content again might give a stale one.
        if key in self._owned:
            self._grown[key, name] = text
        if self._snapshot is not None and self._snapshot.has(key):
            self._snapshot.note(key, name, text, changed_at=time.time())

    def remove(self, key: str, name: str = "") -> None:
        """Removes a file or, without a name, the trial."""
        if name:
            self._objects.remove([_path(key, name)])
            self._grown.pop((key, name), None)
            if self._snapshot is not None:
                self._snapshot.note(key, name, None, changed_at=0.0)
            return
        self.remove_checkpoints(key)
        names = self._objects.list_objects(f"{TRIALS}/{key}")
        self._objects.remove([*(_path(key, name) for name in names), f"{OWNERS}/{key}"])
        if self._snapshot is not None:
            self._snapshot.forget(key)

    def changed_at(self, key: str, name: str) -> float | None:
        """Returns when a file was last written, in seconds since 1970; None if there is none."""
        if self._snapshot is not None and self._snapshot.has(key):
            return self._snapshot.changed_at(key, name)
        return self._objects.changed_at(_path(key, name))

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Makes this worker the owner of a trial within the block; an earlier owner loses it."""
        self._owned[key] = uuid.uuid4().hex.encode()
        self._objects.write(f"{OWNERS}/{key}", self._owned[key])
        try:
            yield
        finally:
            del self._owned[key]
            self._grown = {known: text for known, text in self._grown.items() if known[0] != key}

    def is_locked(self, key: str) -> bool:
        """Returns False: the driver that holds the bucket has begun every trial itself."""
        return False

    def checkpoint_folder(self, key: str) -> Path | None:
        """Returns None: the checkpoints are objects."""
        return None

    def list_checkpoints(self, key: str) -> list[str]:
        """Returns the names of a trial's checkpoints, sorted."""
        return sorted(self._objects.list_objects(f"{CHECKPOINTS}/{key}"))

    def read_checkpoint(self, key: str, name: str) -> bytes | None:
        """Returns a checkpoint; None if there is none."""
        return self._objects.read(f"{CHECKPOINTS}/{key}/{name}")

    def write_checkpoint(self, key: str, name: str, content: bytes) -> None:
        """Writes a checkpoint.

        Raises:
            TrialTaken: when another worker has begun the trial since this one locked it.
        """
        self._check_owner(key)
        self._objects.write(f"{CHECKPOINTS}/{key}/{name}", content)

    def remove_checkpoint(self, key: str, name: str) -> None:
        """Removes a checkpoint."""
        self._objects.remove([f"{CHECKPOINTS}/{key}/{name}"])

    def remove_checkpoints(self, key: str) -> None:
        """Removes all checkpoints of a trial."""
        for name in self.list_checkpoints(key):
            self.remove_checkpoint(key, name)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the only right to drive sweeps in the bucket, and reads what is in it.

        Raises:
            BucketInUse: when a living driver holds it.
        """
        with held_lease(self._objects) as self._lease:
            self._snapshot = Snapshot(self._objects)
            yield
            self._snapshot.settle()

    def check_held(self) -> None:
        """Raises BucketInUse when another driver has taken over."""
        if self._lease is not None:
            self._lease.check()

    def hand_out(self, key: str) -> None:
        """Notes that a worker may change a trial from now on."""
        if self._snapshot is not None:
            self._snapshot.hand_out(key)

    def take_back(self, key: str) -> None:
        """Notes that a trial has ended."""
        if self._snapshot is not None:
            self._snapshot.take_back(key)

    def open_log(self, folder: Path) -> "BucketLog":
        """Returns the ledger's lines of the study with this working folder."""
        return BucketLog(self._objects, folder.name)

    def _check_owner(self, key: str) -> None:
        owned = self._owned.get(key)
        if owned is not None and self._objects.read(f"{OWNERS}/{key}") != owned:
            raise TrialTaken(f"another worker has begun trial {key} since; this one stops.")


class BucketLog:
    """Lines of a study that only grow, in parts."""

    def __init__(self, objects: ObjectFolder, study: str) -> None:
        self._objects = objects
        self._study = study
        self._part = 1
        self._text = ""

    def read(self) -> list[str]:
        """Returns all lines."""
        names = sorted(self._objects.list_objects(f"{STUDIES}/{self._study}"))
        found = self._objects.read_many(f"{STUDIES}/{self._study}/{name}" for name in names)
        texts = [found[path].decode() for path in sorted(found)]
        if texts:
            self._part, self._text = len(texts), texts[-1]
        return "".join(texts).splitlines()

    def append(self, line: str) -> None:
        """Adds a line."""
        if len(self._text) >= PART_BYTES:
            self._part, self._text = self._part + 1, ""
        text = f"{self._text}{line}\n"
        name = f"{STUDIES}/{self._study}/trials-{self._part:06d}.jsonl"
        self._objects.write(name, text.encode())
        self._text = text

    def read_others(self) -> list[str]:
        """Returns the text of every other study's lines."""
        names = self._objects.list_objects(STUDIES)
        others = [f"{STUDIES}/{name}" for name in names if name.partition("/")[0] != self._study]
        return [content.decode() for content in self._objects.read_many(others).values()]


def _path(key: str, name: str) -> str:
    return f"{TRIALS}/{key}/{name}"
