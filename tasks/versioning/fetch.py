"""Brings prepared data to a node of a cluster: once, by their hash, checked."""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml
from dvc.repo import Repo

from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.data.prepared_info import FILE_NAME as INFO_FILE
from dml_core.data.prepared_info import load_info, verify_files
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.writing import DEVELOPMENT
from tasks.versioning.damage import find_damage, list_names
from tasks.versioning.remote import Remote, pull_checked, read_remote
from tasks.versioning.session import DvcError, open_repo, quiet

LOGGER = logging.getLogger(__name__)

# Trials see no test class, so the test images do not travel.
_WANTED = (DEVELOPMENT, INFO_FILE, SPLIT_FILE)


@dataclass(frozen=True)
class PreparedSource:
    """One version of a prepared dataset and the remote that keeps it; small, without secrets."""

    name: str
    """Name of the dataset's folder."""
    md5: str
    """DVC's hash of the folder, as in dvc.lock."""
    remote: Remote


def locate_prepared(folder: Path, dataset: Path, *, remote: str = "") -> PreparedSource:
    """Returns which version of a dataset a project is at, and where nodes can fetch it.

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
                "dml data push. One with an alias of a study's own needs data_access.mode=shared."
            )
        return PreparedSource(dataset.name, str(found[0].hash_info.value), chosen)


def fetch_prepared(source: PreparedSource, *, cache_root: Path) -> Path:
    """Returns the folder of the development data on this machine, fetched if it is not there.

    Processes of one machine wait for each other, so that one of them downloads. What was
    downloaded is compared with the checksums that it was written with, and appears whole or not
    at all. What is there already is compared with them once by each process, and fetched again
    where it is damaged.

    Args:
        source: from `locate_prepared`, on the machine that drives the sweep.
        cache_root: folder of this machine for fetched data; `~` is expanded.
    """
    version = source.md5.removesuffix(".dir")
    target = cache_root.expanduser() / "prepared" / version / source.name
    if _is_whole(target):
        return target
    with folder_lock(target):
        # Another process may have fetched it while this one waited.
        if not _is_whole(target):
            for damage in find_damage(target):
                LOGGER.warning("%s It is fetched again.", damage)
            with replaced_folder(target) as partial:
                _download(source, partial)
                verify_files(partial, names=list_names(load_info(partial), (DEVELOPMENT,)))
    return target


def _is_whole(folder: Path) -> bool:
    try:
        load_info(folder)
    except DatasetError:
        return False
    return not find_damage(folder)


def _download(source: PreparedSource, target: Path) -> None:
    """Pulls into a DVC project of its own, since a node has no clone of this one."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name, quiet():
        project = Path(name)
        Repo.init(str(project), no_scm=True).close()
        out = {"md5": source.md5, "hash": "md5", "path": source.name}
        (project / "data.dvc").write_text(yaml.safe_dump({"outs": [out]}), encoding="utf-8")
        repo = Repo(str(project), config=_config(source.remote))
        try:
            targets = [str(project / source.name / part) for part in _WANTED]
            pull_checked(repo, targets, source.remote)
        except DvcError as error:
            raise DvcError(
                f"dataset {source.name!r} in version {source.md5} cannot be fetched: {error}"
            ) from error
        finally:
            repo.close()
        for part in _WANTED:
            (project / source.name / part).rename(target / part)


def _config(remote: Remote) -> dict[str, object]:
    return {
        "core": {"remote": remote.name, "analytics": False, "check_update": False},
        "remote": {remote.name: {**remote.settings, "verify": True}},
        # A link spares a second copy of the bytes; the cache itself is thrown away afterwards.
        "cache": {"type": "hardlink,copy"},
    }
