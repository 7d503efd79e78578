"""What a driver knows of the trials in a bucket, so that ten thousand cost one listing.

The content of trials that have ended is also in a few index objects. An entry counts only while
the listing has the object with the same tag, so the index is never wrong, merely incomplete.
"""

import gzip
import json
import uuid
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dml_core.trials.objects import ObjectFacts, ObjectFolder

TRIALS, INDEX = "trials", "index"
BATCH = 200
"""Trials in an index object."""
_MOST_PARTS = 100
"""Index objects before they are joined."""
_RESULT = "result.json"
_THREADS = 16

Entry = dict[str, Any]
"""Tag and text of an object."""


class Snapshot:
    """The files of all trials, as they were listed; those of handed-out trials are left out."""

    def __init__(self, objects: ObjectFolder) -> None:
        """Reads the bucket."""
        self._objects = objects
        self._facts: dict[str, ObjectFacts] = {}
        self._texts: dict[str, str] = {}
        self._indexed: dict[str, Entry] = {}
        self._handed_out: set[str] = set()
        self._ended: set[str] = set()
        self._parts: list[str] = []
        self._load()

    def has(self, key: str) -> bool:
        """Returns whether the files of a trial are known here."""
        return key not in self._handed_out

    def read(self, key: str, name: str) -> str | None:
        """Returns the content of a file; None if there is none."""
        return self._texts.get(f"{key}/{name}")

    def changed_at(self, key: str, name: str) -> float | None:
        """Returns when a file was last written; None if there is none."""
        facts = self._facts.get(f"{key}/{name}")
        return None if facts is None else facts.changed_at

    def list_keys(self) -> set[str]:
        """Returns the keys of all trials."""
        return {name.partition("/")[0] for name in self._texts} | self._handed_out

    def forget(self, key: str) -> None:
        """Notes that a trial is gone."""
        self._drop([name for name in self._texts if name.startswith(f"{key}/")])
        self._ended.discard(key)

    def note(self, key: str, name: str, text: str | None, *, changed_at: float) -> None:
        """Notes a file that this process wrote or removed."""
        path = f"{key}/{name}"
        if text is None:
            self._drop([path])
        else:
            self._texts[path] = text
            self._facts[path] = ObjectFacts("", changed_at)

    def hand_out(self, key: str) -> None:
        """Notes that a worker may change a trial from now on."""
        self._handed_out.add(key)
        self._ended.discard(key)

    def take_back(self, key: str) -> None:
        """Notes that a trial has ended; its files are read together with those of others."""
        if key in self._handed_out:
            self._ended.add(key)
        if len(self._ended) >= BATCH:
            self.settle()

    def settle(self) -> None:
        """Reads the trials that have ended, and adds them to the index."""
        ended, self._ended = sorted(self._ended), set()
        if not ended:
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            listings = pool.map(self._list_trial, ended)
            listed = {name: facts for listing in listings for name, facts in listing.items()}
        self._enter(listed)
        self._handed_out -= set(ended)
        self._index(ended)

    def _load(self) -> None:
        self._parts = list(self._objects.list_objects(INDEX))
        for content in self._objects.read_many(f"{INDEX}/{part}" for part in self._parts).values():
            self._indexed.update(json.loads(gzip.decompress(content)))
        self._enter(self._objects.list_objects(TRIALS))
        keys = {name.partition("/")[0] for name in self._texts if name.endswith(f"/{_RESULT}")}
        self._index(keys)

    def _list_trial(self, key: str) -> dict[str, ObjectFacts]:
        listed = self._objects.list_objects(f"{TRIALS}/{key}")
        return {f"{key}/{name}": facts for name, facts in listed.items()}

    def _enter(self, listed: dict[str, ObjectFacts]) -> None:
        missing = []
        for name, facts in listed.items():
            entry = self._indexed.get(name)
            if entry is not None and entry["tag"] == facts.tag:
                self._texts[name] = entry["text"]
            else:
                missing.append(name)
        contents = self._objects.read_many(f"{TRIALS}/{name}" for name in missing)
        for path, content in contents.items():
            self._texts[path.partition("/")[2]] = content.decode()
        self._facts.update(listed)

    def _index(self, keys: Iterable[str]) -> None:
        """Writes an index object with the files of trials that no index has yet."""
        names: dict[str, list[str]] = defaultdict(list)
        for name in self._texts:
            names[name.partition("/")[0]].append(name)
        fresh: dict[str, Entry] = {}
        for name in (name for key in keys for name in names[key]):
            tag = self._facts[name].tag
            if tag and self._indexed.get(name, {}).get("tag") != tag:
                fresh[name] = {"tag": tag, "text": self._texts[name]}
        if not fresh:
            return
        self._indexed.update(fresh)
        self._write_part(fresh)

    def _write_part(self, fresh: dict[str, Entry]) -> None:
        old: list[str] = []
        if len(self._parts) >= _MOST_PARTS:
            old, fresh = self._parts, {n: e for n, e in self._indexed.items() if n in self._facts}
            self._parts = []
        part = f"{uuid.uuid4().hex}.json.gz"
        content = gzip.compress(json.dumps(fresh).encode(), compresslevel=3)
        self._objects.write(f"{INDEX}/{part}", content)
        self._parts.append(part)
        self._objects.remove(f"{INDEX}/{name}" for name in old)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._texts.pop(name, None)
            self._facts.pop(name, None)
