"""Copies tracked files from DVC's cache or a remote: to repair a folder, or to a cluster node.

Repairs take no lock of DVC: a stage that `dvc repro` runs holds the lock of its own data.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from dvc.output import Output
from dvc.repo import Repo

from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.data.prepared_info import FILE_NAME as INFO_FILE
from dml_core.data.prepared_info import load_info, verify_files
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.writing import DEVELOPMENT, TEST
from tasks.versioning.remote import Remote, check_listing, moving, pull_checked, read_remote
from tasks.versioning.restoring import find_damage, list_names
from tasks.versioning.session import DvcError, open_repo, quiet

Store = Literal["cache", "remote"]
LISTING = "the list of the folder's files"


def copy_tracked(
    project: Path, folder: Path, names: Sequence[str], target: Path, *, store: Store
) -> Path:
    """Copies files of a tracked folder into another folder, and returns that.

    Args:
        project: the root of the DVC project.
        folder: tracked by DVC, absolute or relative to the project.
        names: files in it, relative to it.
        target: an empty folder.
        store: the source of the copies; remote is the project's default one.

    Raises:
        DvcError: when the folder is not tracked, or a copy is missing or damaged.
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


def repair_cache(project: Path, folder: Path, names: Sequence[str]) -> list[str]:
    """Replaces damaged and lost objects in DVC's cache by the good files of a tracked folder.

    Damage to a file that is linked to the cache damages both, and DVC does not check its cache.

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
            if name in listing and _repair(Path(cache.oid_to_path(listing[name])), folder / name)
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
    """Returns the object store, its name for messages, and a context that explains its errors."""
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
    """DVC's object database."""
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
        # DVC's objects are read-only, and a copy may inherit that.
        target.chmod(0o644)
        _check(target, oid.removesuffix(".dir"), what=what, where=self.where)


def read_listing(file: Path, oid: str) -> dict[str, str]:
    """Returns the hashes of a folder's files by their names, from its list in DVC's cache.

    Raises:
        DvcError: where the list is missing or damaged.
    """
    return _parse_listing(file, oid, where="DVC's cache")


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


def _repair(cached: Path, good: Path) -> bool:
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


LOGGER = logging.getLogger(__name__)

# Trials see no test class, so the test images have a folder that only the evaluation reads.
_FOLDERS = {DEVELOPMENT: "prepared", TEST: "test"}


@dataclass(frozen=True)
class PreparedSource:
    """One version of a prepared dataset and the remote that holds it; small, without secrets."""

    name: str
    """Name of the dataset's folder."""
    md5: str
    """DVC's hash of the folder, as in dvc.lock."""
    remote: Remote


def locate_prepared(folder: Path, dataset: Path, *, remote: str = "") -> PreparedSource:
    """Returns a project's version of a dataset, and the remote that nodes fetch it from.

    Args:
        folder: the root of the project.
        dataset: the prepared folder, absolute or relative to the project.
        remote: name of the remote; empty takes the default one.
    """
    chosen = read_remote(folder, remote)
    with open_repo(folder) as repo:
        wanted = str((folder.resolve() / dataset).resolve())
        found = [out for out in repo.index.outs if str(out.fs_path) == wanted and out.hash_info]
        if not found:
            raise DvcError(
                f"dvc.lock knows no version of {dataset}, so no node can fetch it by its hash. "
                "The dataset of params.yaml is made with: dvc repro prepare, and uploaded with: "
                "dml data push. A study's own dataset needs data_access.mode=shared."
            )
        return PreparedSource(dataset.name, str(found[0].hash_info.value), chosen)


def fetch_prepared(source: PreparedSource, *, cache_root: Path, part: str = DEVELOPMENT) -> Path:
    """Returns the folder of a part of the data on this machine, fetched if it is missing.

    Processes of one machine wait for each other, so that only one downloads. A download is
    compared with its checksums, and appears whole or not at all. Each process compares existing
    data with them once, and fetches damaged data again.

    Args:
        source: from `locate_prepared`, on the sweep's driver.
        cache_root: folder of this machine for fetched data; `~` is expanded.
        part: which images: those of the development or of the test classes.
    """
    version = source.md5.removesuffix(".dir")
    target = cache_root.expanduser() / _FOLDERS[part] / version / source.name
    if _is_whole(target, part):
        return target
    with folder_lock(target):
        # Another process may have fetched it while this one waited.
        if not _is_whole(target, part):
            for damage in find_damage(target, (part,)):
                LOGGER.warning("%s It is fetched again.", damage)
            with replaced_folder(target) as partial:
                _download(source, partial, part)
                verify_files(partial, names=list_names(load_info(partial), (part,)))
    return target


def _is_whole(folder: Path, part: str) -> bool:
    try:
        load_info(folder)
    except DatasetError:
        return False
    return not find_damage(folder, (part,))


def _download(source: PreparedSource, target: Path, part: str) -> None:
    """Pulls into a temporary DVC project, since a node has no clone of this one."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name, quiet():
        project = Path(name)
        Repo.init(str(project), no_scm=True).close()
        out = {"md5": source.md5, "hash": "md5", "path": source.name}
        (project / "data.dvc").write_text(yaml.safe_dump({"outs": [out]}), encoding="utf-8")
        repo = Repo(str(project), config=_config(source.remote))
        wanted = (part, INFO_FILE, SPLIT_FILE)
        try:
            targets = [str(project / source.name / each) for each in wanted]
            pull_checked(repo, targets, source.remote)
        except DvcError as error:
            raise DvcError(
                f"dataset {source.name!r} in version {source.md5} cannot be fetched: {error}"
            ) from error
        finally:
            repo.close()
        for each in wanted:
            (project / source.name / each).rename(target / each)


def _config(remote: Remote) -> dict[str, object]:
    return {
        "core": {"remote": remote.name, "analytics": False, "check_update": False},
        "remote": {remote.name: {**remote.settings, "verify": True}},
        # A link saves a second copy of the bytes; the cache itself is deleted afterwards.
        "cache": {"type": "hardlink,copy"},
    }
