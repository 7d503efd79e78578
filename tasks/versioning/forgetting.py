"""Removes a study from DVC's record: its entries in dvc.lock, and its objects in the cache."""

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dvc.dvcfile import Lockfile
from dvc.output import Output
from dvc.repo import Repo, lock_repo
from dvc.utils.serialize import modify_yaml

from tasks.versioning.copies import read_listing
from tasks.versioning.session import DvcError, open_repo


@dataclass(frozen=True)
class Forgotten:
    """What DVC no longer knows."""

    stages: tuple[str, ...]
    objects: tuple[Path, ...]
    """Files in the cache that no other output here names."""


def find_forgotten(project: Path, stages: Collection[str], removed: Collection[Path]) -> Forgotten:
    """Returns what DVC will forget with some stages; changes nothing.

    Args:
        project: the root of the DVC project.
        stages: names of stages.
        removed: outputs whose objects are freed; other outputs of the stages may be links to
            theirs.
    """
    with open_repo(project) as repo, lock_repo(repo):
        known = _read_entries(repo)
        wanted = {str((project / path).resolve()) for path in removed}
        freed, kept = {}, set()
        for out in repo.index.outs:
            if not out.hash_info:
                continue
            objects = _list_objects(out)
            if _is_within(str(out.fs_path), wanted):
                freed.update(objects)
            else:
                kept |= set(objects)
        found = [path for oid, path in sorted(freed.items()) if oid not in kept and path.is_file()]
        return Forgotten(tuple(name for name in stages if name in known), tuple(found))


def forget(project: Path, forgotten: Forgotten) -> None:
    """Removes stages from dvc.lock and objects from the cache; running it twice is safe."""
    with open_repo(project) as repo, lock_repo(repo):
        lock = Path(repo.root_dir, "dvc.lock")
        if lock.exists() and forgotten.stages:
            # DVC writes dvc.lock in place: a process killed meanwhile would leave it cut short.
            partial = Path(repo.tmp_dir, "dvc.lock.partial")
            shutil.copy(lock, partial)
            # Not Lockfile.remove_stage, which leaves files below .dvc/tmp alone.
            with modify_yaml(str(partial)) as content:
                for name in forgotten.stages:
                    content.get("stages", {}).pop(name, None)
            os.replace(partial, lock)
    for path in forgotten.objects:
        path.unlink(missing_ok=True)


def _read_entries(repo: Repo) -> Mapping[str, object]:
    lock = Lockfile(repo, str(Path(repo.root_dir, "dvc.lock")))
    found: Mapping[str, object] = lock.load().get("stages", {}) if lock.exists() else {}
    return found


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _list_objects(out: Output) -> dict[str, Path]:
    """Returns the objects of an output in the cache by their hash, its listing included."""
    cache, oid = out.cache, str(out.hash_info.value)
    objects = {oid: Path(cache.oid_to_path(oid))}
    if out.hash_info.isdir:
        try:
            listing = read_listing(objects[oid], oid)
        except DvcError:
            # Without its list the files of a folder are unknown, and stay.
            return objects
        objects |= {md5: Path(cache.oid_to_path(md5)) for md5 in listing.values()}
    return objects
