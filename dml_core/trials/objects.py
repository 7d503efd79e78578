"""Objects below an address of fsspec, such as s3://bucket/prefix.

An object is written whole or not at all. Requests that fail for the moment are repeated, so that a
bucket that is away for some minutes costs time and nothing else. Credentials are those of the
environment or of the node's role.
"""

import errno
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypeVar

LOGGER = logging.getLogger(__name__)

PATIENCE_SECONDS = 600.0
"""How long a bucket may be away before a request gives up."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 15.0
_LASTING = (FileNotFoundError, FileExistsError, PermissionError, ValueError, TypeError)
_LASTING_NUMBERS = {
    errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOSPC, errno.EDQUOT, errno.EROFS,
}  # fmt: skip
_LASTING_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 60,
            "retries": {"max_attempts": 2},
            "max_pool_connections": 64,
        },
        # With more, every read would first request the object's size.
        "max_concurrency": 1,
    }
}
"""Arguments of a protocol's file system."""

T = TypeVar("T")


class BucketUnavailable(ConnectionError):
    """A bucket did not answer for too long; what is in it is kept."""


class BucketRefused(ValueError):
    """A bucket does not exist or may not be used; a repetition does not help."""


@dataclass(frozen=True)
class ObjectFacts:
    """An object in a listing."""

    tag: str
    """Differs between two contents of one object."""
    changed_at: float
    """Seconds since 1970."""


class ObjectFolder:
    """The objects below an address, by names relative to it."""

    def __init__(self, location: str) -> None:
        """Opens an address, such as s3://bucket/prefix; no request is made yet."""
        # Late: a command without a bucket does not need it.
        import fsspec

        self.location = location.rstrip("/")
        protocol = location.partition("://")[0]
        # A cached listing would be a stale one: other machines write too.
        options = {"use_listings_cache": False, **_OPTIONS.get(protocol, {})}
        if protocol not in ("memory", "file"):
            options["skip_instance_cache"] = True
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.location, **options)
        except (ValueError, ImportError) as error:
            raise BucketRefused(
                f"sweep.storage must be an address that fsspec can open, such as "
                f"s3://bucket/prefix. Got {location!r}: {_first_line(error)}"
            ) from error
        self._has_conditions = protocol in ("s3", "s3a")
        self._patience_seconds: float | None = None

    def impatient(self, seconds: float) -> Self:
        """Returns the same objects for requests that give up soon, and without a warning."""
        other = copy(self)
        other._patience_seconds = seconds
        return other

    def read(self, name: str) -> bytes | None:
        """Returns the content of an object; None if there is none."""
        try:
            content: bytes = self._repeat(lambda: self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None
        return content

    def read_many(self, names: Iterable[str]) -> dict[str, bytes]:
        """Returns the contents of objects, read concurrently; missing ones are left out."""
        paths = {self._path(name): name for name in names}
        if not paths:
            return {}
        found = self._repeat(lambda: self._cat(list(paths)))
        return {
            paths[path]: content
            for path, content in found.items()
            if not isinstance(content, FileNotFoundError)
        }

    def write(self, name: str, content: bytes) -> None:
        """Replaces an object."""
        self._repeat(lambda: self._put(name, content))

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object if there is none; returns whether it did."""
        try:
            self._repeat(lambda: self._put(name, content, mode="create"))
        except FileExistsError:
            # A repeated request may have met its own first attempt.
            return self.read(name) == content
        return True

    def replace(self, name: str, content: bytes, *, tag: str) -> bool:
        """Writes an object if its tag is still this one; returns whether it did.

        Stores without conditional writes compare and write in two steps.
        """
        condition = {"IfMatch": tag} if self._has_conditions else {}
        if not condition and self.find_tag(name) != tag:
            return False
        try:
            self._repeat(lambda: self._put(name, content, **condition))
        except (FileNotFoundError, OSError) as error:
            if isinstance(error, FileNotFoundError) or error.errno == errno.EINVAL:
                return self.read(name) == content
            raise
        return True

    def find_tag(self, name: str) -> str | None:
        """Returns the tag of an object; None if there is none."""
        facts = self._find_facts(name)
        return None if facts is None else facts.tag

    def changed_at(self, name: str) -> float | None:
        """Returns when an object was last written, in seconds since 1970; None if it is missing."""
        facts = self._find_facts(name)
        return None if facts is None else facts.changed_at

    def list_objects(self, folder: str) -> dict[str, ObjectFacts]:
        """Returns all objects below a folder, by name, in pages of a thousand."""
        path = self._path(folder)
        try:
            found = self._repeat(lambda: self._files.find(path, detail=True))
        except FileNotFoundError:
            return {}
        start = len(path) + 1
        return {name[start:]: _to_facts(info) for name, info in sorted(found.items())}

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; missing ones are no error."""
        for name in names:
            try:
                self._repeat(lambda name=name: self._files.rm_file(self._path(name)))  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _find_facts(self, name: str) -> ObjectFacts | None:
        try:
            return _to_facts(self._repeat(lambda: self._files.info(self._path(name))))
        except FileNotFoundError:
            return None

    def _cat(self, paths: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = self._files.cat(paths, on_error="return")
        for content in found.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return found

    def _put(self, name: str, content: bytes, **options: Any) -> None:
        path = self._path(name)
        if not self._has_conditions:
            self._files.makedirs(self._files._parent(path), exist_ok=True)
        self._files.pipe_file(path, content, **options)

    def _repeat(self, request: Callable[[], T]) -> T:
        """Repeats a request while the bucket is away.

        Raises:
            BucketRefused: for a bucket or credentials that are wrong.
            BucketUnavailable: when the patience is over.
        """
        patience = PATIENCE_SECONDS if self._patience_seconds is None else self._patience_seconds
        started, pause, is_away = time.monotonic(), _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                answer = request()
            except Exception as error:
                self._raise_lasting(error)
                waited = time.monotonic() - started
                if waited + pause > patience:
                    raise BucketUnavailable(
                        f"{self.location} did not answer for {waited:.0f} s: {_first_line(error)}"
                    ) from error
                if not is_away:
                    is_away = True
                    self._warn(
                        "%s does not answer (%s) It is tried for %.0f s; nothing is lost.",
                        self.location, _first_line(error), patience,
                    )  # fmt: skip
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                if is_away:
                    waited = time.monotonic() - started
                    self._warn("%s answers again, after %.0f s.", self.location, waited)
                return answer

    def _raise_lasting(self, error: Exception) -> None:
        """Raises an error that a repetition would not change."""
        name = type(error).__name__
        if isinstance(error, FileNotFoundError) and "bucket does not exist" in str(error):
            raise BucketRefused(
                f"the bucket of sweep.storage={self.location} does not exist. Create it, or "
                "correct the address."
            ) from error
        if isinstance(error, PermissionError) or name in _LASTING_NAMES:
            raise BucketRefused(
                f"sweep.storage={self.location} may not be used: {_first_line(error)} Give this "
                "machine credentials for it, as by the environment or the node's role."
            ) from error
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, _LASTING) or number in _LASTING_NUMBERS:
            raise error

    def _warn(self, message: str, *arguments: object) -> None:
        if self._patience_seconds is None:
            LOGGER.warning(message, *arguments)


def _to_facts(info: Mapping[str, Any]) -> ObjectFacts:
    changed = next((info[n] for n in ("LastModified", "mtime", "created") if info.get(n)), 0.0)
    seconds = changed.timestamp() if isinstance(changed, datetime) else float(changed)
    tag = str(info.get("ETag") or f"{seconds}/{info.get('size')}")
    return ObjectFacts(tag, seconds)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
