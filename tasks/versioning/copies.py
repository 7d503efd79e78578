"""Takes copies of tracked files out of DVC's cache or a remote, each compared with its hash.

Takes no lock of DVC's, because a stage that `dvc repro` runs holds those of its own data.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dvc.output import Output
from dvc.repo import Repo

from tasks.versioning.remote import check_listing, moving, read_remote
from tasks.versioning.session import DvcError, open_repo

Store = Literal["cache", "remote"]
LISTING = "the list of the folder's files"


def copy_tracked(
    project: Path, folder: Path, names: Sequence[str], target: Path, *, store: Store
) -> Path:
    """Copies files of a tracked folder into another folder, and returns that.

    Args:
        project: the root of the DVC project.
        folder: tracked by DVC, absolute or relative to the project.
        names: files of it, relative to it.
        target: an empty folder.
        store: where the copies are taken from; remote means the project's default one.

    Raises:
        DvcError: when the folder is not tracked, or a copy is missing or damaged itself.
    """
    with open_repo(project) as repo:
        out = _find_output(repo, project, folder)
        copier = _Copier(*_open_store(repo, project, out, store))
        listing = copier.read_listing(str(out.hash_info.value), target)
        for name in names:
            if name not in listing:
                raise DvcError(f"the version in dvc.lock has no file {name}")
            copier.copy(listing[name], target / name, what=name)
    return target


def mend_cache(project: Path, folder: Path, names: Sequence[str]) -> list[str]:
    """Replaces damaged and lost copies in DVC's cache by the good files of a tracked folder.

    Files that are linked to the cache are damaged together with it, and DVC believes its cache.

    Returns:
        The names whose copies were replaced.
    """
    with open_repo(project) as repo:
        out = _find_output(repo, project, folder)
        cache, oid = out.cache, str(out.hash_info.value)
        try:
            listing = _parse_listing(Path(cache.oid_to_path(oid)), oid, where="DVC's cache")
        except DvcError:
            return []
        return [
            name
            for name in names
            if name in listing and _mend(Path(cache.oid_to_path(listing[name])), folder / name)
        ]


def _find_output(repo: Repo, project: Path, folder: Path) -> Output:
    wanted = str((project.resolve() / folder).resolve())
    for out in repo.index.outs:
        if str(out.fs_path) == wanted and out.hash_info and out.hash_info.isdir:
            return out
    raise DvcError(f"dvc.lock knows no version of {folder}")


def _open_store(
    repo: Repo, project: Path, out: Output, store: Store
) -> tuple[Any, str, Callable[[], AbstractContextManager[None]]]:
    """Returns where the bytes are, what it is called, and what makes its errors readable."""
    if store == "cache":
        return out.cache, "DVC's cache", nullcontext
    remote = read_remote(project)
    with moving(repo, remote):
        storage = repo.cloud.get_remote_odb(remote.name)
    where = f"the remote {remote.name!r} ({remote.shown_url})"
    return storage, where, lambda: moving(repo, remote)


@dataclass(frozen=True)
class _Copier:
    """Copies objects by their hash."""

    storage: Any
    """DVC's database of objects."""
    where: str
    guard: Callable[[], AbstractContextManager[None]]

    def read_listing(self, oid: str, folder: Path) -> dict[str, str]:
        file = folder / f".listing-{secrets.token_hex(4)}"
        self.copy(oid, file, what=LISTING)
        try:
            return _parse_listing(file, oid, where=self.where)
        finally:
            file.unlink()

    def copy(self, oid: str, target: Path, *, what: str) -> None:
        path = self.storage.oid_to_path(oid)
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.guard():
            exists = self.storage.fs.exists(path)
            if exists:
                self.storage.fs.get_file(path, str(target))
        if not exists:
            raise DvcError(f"{self.where} lacks {what} ({oid})")
        # DVC protects its objects, and a copy may inherit that.
        target.chmod(0o644)
        _check(target, oid.removesuffix(".dir"), what=what, where=self.where)


def _parse_listing(file: Path, oid: str, *, where: str) -> dict[str, str]:
    if not file.is_file():
        raise DvcError(f"{where} lacks {LISTING} ({oid})")
    _check(file, oid.removesuffix(".dir"), what=LISTING, where=where)
    entries = json.loads(file.read_text(encoding="utf-8"))
    check_listing(entries, what=where)
    return {entry["relpath"]: entry["md5"] for entry in entries}


def _check(file: Path, md5: str, *, what: str, where: str) -> None:
    if (found := _hash(file)) != md5:
        raise DvcError(f"the copy of {what} in {where} is damaged too: md5 {found}, not {md5}")


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def _mend(cached: Path, good: Path) -> bool:
    oid = cached.parent.name + cached.name
    if _hash(good) != oid or (cached.is_file() and _hash(cached) == oid):
        return False
    cached.parent.mkdir(parents=True, exist_ok=True)
    partial = cached.with_name(f".{cached.name}.partial-{secrets.token_hex(4)}")
    try:
        shutil.copyfile(good, partial)
        partial.chmod(0o444)
        os.replace(partial, cached)
    finally:
        partial.unlink(missing_ok=True)
    return True
