"""Moves tracked bytes between this machine and a DVC remote."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dvc.fs import localfs
from dvc.lock import LockError
from dvc.output import Output
from dvc.repo import Repo, lock_repo
from dvc.stage import PipelineStage

from dml_core.config.problems import suggest
from tasks.versioning.session import ABSENCE, ADD_REMOTE, DvcError, open_repo, redact

DATA_STAGE = "prepare"
# Parts of the names of settings that hold a secret, in any of DVC's remote types.
_SECRET_WORDS = ("password", "secret", "token", "access_key", "account_key", "connection_string")


@dataclass(frozen=True)
class Remote:
    """Where a remote is and how to reach it, without anything secret."""

    name: str
    settings: Mapping[str, Any]
    """DVC's settings of the remote: `url` and, say, `endpointurl` and `region`."""

    @property
    def verified(self) -> dict[str, Any]:
        """Settings that make DVC compare each download with its hash, which is not its default."""
        return {"remote": {self.name: {"verify": True}}}

    @property
    def shown_url(self) -> str:
        """Address for messages."""
        return redact(str(self.settings["url"]))


def read_remote(folder: Path, name: str = "") -> Remote:
    """Returns the named remote of a project, or its default one.

    Passwords and keys are left out, so that the result may be logged and sent to other machines,
    which have their own credentials.
    """
    with open_repo(folder) as repo:
        chosen = name or repo.config["core"].get("remote", "")
        remotes = repo.config["remote"]
        if not chosen:
            raise DvcError(
                f"the DVC project at {folder} has no default remote to store data in and fetch "
                f"them from. Run: {ADD_REMOTE}"
            )
        if chosen not in remotes:
            there = ", ".join(remotes) or "none"
            raise DvcError(
                f"the DVC project at {folder} has no remote {chosen!r}. It has: {there}."
                f"{suggest(chosen, remotes)} Add it with: {ADD_REMOTE.replace('storage', chosen)}"
            )
        settings = {
            key: str(value) if key == "url" else value
            for key, value in remotes[chosen].items()
            if not any(word in key for word in _SECRET_WORDS)
        }
        return Remote(chosen, settings)


def push_data(folder: Path, *, remote: str = "", everything: bool = False) -> int:
    """Uploads datasets, raw and prepared, and returns how many files the remote lacked.

    Args:
        folder: the root of the project.
        remote: name of the remote; empty takes the default one.
        everything: also the outputs of the later stages.
    """
    chosen = read_remote(folder, remote)
    with open_repo(folder) as repo:
        targets = _targets(repo, "", everything=everything)
        with moving(repo, chosen):
            return int(repo.push(targets=targets, remote=chosen.name)) if targets else 0


def pull_data(
    folder: Path, name: str = "", *, remote: str = "", everything: bool = False
) -> list[str]:
    """Downloads missing datasets, and returns which paths changed.

    Args:
        folder: the root of the project.
        name: one dataset, raw or prepared; empty takes all.
        remote: name of the remote; empty takes the default one.
        everything: also the outputs of the later stages.
    """
    source = read_remote(folder, remote)
    with open_repo(folder, source.verified) as repo:
        targets = _targets(repo, name, everything=everything)
        if not targets:
            return []
        done = pull_checked(repo, targets, source)
        return [str(path) for kind in ("added", "modified") for path in done.get(kind, [])]


def pull_checked(repo: Repo, targets: Sequence[str], remote: Remote) -> dict[str, list[str]]:
    """Downloads targets and writes them to the project, after checking that they are harmless.

    Neither the project nor the remote is trusted: a download must have the hash that the project
    names, and is written only below its own output.

    Args:
        repo: opened with the remote's `verified` settings.
        targets: absolute paths of outputs, or of files in them.
        remote: where they are.

    Returns:
        The paths that were added or modified, under these words.
    """
    with lock_repo(repo):
        outs = [out for out in repo.index.outs if any(_overlap(out, path) for path in targets)]
    for out in outs:
        check_is_inside(repo, out)
    with moving(repo, remote):
        repo.fetch(targets=list(targets), remote=remote.name)
    for out in outs:
        _check_download(repo, out, targets, remote)
    with moving(repo, remote):
        done: dict[str, list[str]] = repo.checkout(targets=list(targets))
    return done


def check_is_inside(repo: Repo, out: Output) -> None:
    """Raises DvcError where an output lies outside the project, or in .git or .dvc."""
    root, path = Path(repo.root_dir).resolve(), Path(os.path.abspath(out.fs_path))
    inner = path.relative_to(root).parts if path.is_relative_to(root) else ()
    links = [root.joinpath(*inner[: n + 1]) for n in range(len(inner))]
    # A link that the user made, such as one to a larger disk, is in no commit.
    followed = [link for link in links if link.is_symlink() and _is_committed(root, link)]
    if not inner or inner[0] in (".git", ".dvc") or followed:
        raise DvcError(
            f"{out.stage.relpath} names {followed[0] if followed else out.def_path}, and an output "
            f"must lie in the project ({root}), since pulling replaces it. Nothing was written. "
            "Correct that file, or do not use this project."
        )


def check_listing(entries: Sequence[Mapping[str, str]], *, what: str) -> None:
    """Raises DvcError where the list of a folder's files names one outside the folder."""
    for entry in entries:
        path = PurePosixPath(entry["relpath"])
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise _outside(what, entry["relpath"])


def _outside(what: str, name: str) -> DvcError:
    return DvcError(
        f"the list of files of {what} names {name!r}, which lies outside it. Nothing was "
        "written. The data were not made by DVC: do not use them."
    )


def _is_committed(root: Path, link: Path) -> bool:
    command = ["git", "-C", str(root), "ls-files", "--error-unmatch", str(link)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _overlap(out: Output, target: str) -> bool:
    return bool(localfs.overlaps(str(out.fs_path), target))


def _check_download(repo: Repo, out: Output, targets: Sequence[str], remote: Remote) -> None:
    """Raises DvcError where a download is not what the project names."""
    if not out.hash_info:
        return
    wanted = {str(out.hash_info.value): str(out)}
    listing = Path(out.cache.oid_to_path(out.hash_info.value))
    if out.hash_info.isdir and listing.is_file():
        entries = json.loads(listing.read_text(encoding="utf-8"))
        check_listing(entries, what=str(out))
        folders = {parent for e in entries for parent in PurePosixPath(e["relpath"]).parents}
        for folder in sorted(folders - {PurePosixPath()}):
            # The repository may contain a link to another place.
            if Path(out.fs_path, folder).is_symlink():
                raise _outside(str(out), str(folder))
        for entry in entries:
            path = localfs.join(out.fs_path, *PurePosixPath(entry["relpath"]).parts)
            if any(localfs.isin_or_eq(path, target) for target in targets):
                wanted[entry["md5"]] = f"{out}/{entry['relpath']}"
    lost = {oid: name for oid, name in wanted.items() if not out.cache.exists(oid)}
    with moving(repo, remote):
        storage = repo.cloud.get_remote_odb(remote.name)
        wrong = [name for oid, name in lost.items() if storage.exists(oid)]
    if wrong:
        raise DvcError(
            f"the remote {remote.name!r} ({remote.shown_url}) has other bytes than the hash says "
            f"for {len(wrong)} file(s), the first being {wrong[0]}. Nothing was written to the "
            "project. Remove them from the remote, and push them again from a machine that has "
            "them: dml data push"
        )


@contextmanager
def moving(repo: Repo, remote: Remote) -> Iterator[None]:
    """Converts errors of a transfer to or from a remote to a DvcError with the reason."""
    try:
        yield
    except LockError:
        raise
    # Each storage raises its own library's errors, so all are caught.
    except Exception as error:
        reason = _probe(repo, remote) if isinstance(error, ABSENCE) else error
        raise _describe(remote, reason) from error


def _probe(repo: Repo, remote: Remote) -> Exception | None:
    """Returns why a remote cannot be read; None if it can. DVC reports both as missing files."""
    try:
        storage = repo.cloud.get_remote_odb(remote.name)
        storage.fs.ls(storage.path)
    except FileNotFoundError:
        return None
    except Exception as error:
        return error
    return None


def _describe(remote: Remote, reason: Exception | None) -> DvcError:
    where = f"the remote {remote.name!r} ({remote.shown_url})"
    if reason is None:
        return DvcError(
            f"{where} lacks bytes that this project names. Push them from the machine that has "
            "them: dml data push"
        )
    return DvcError(
        f"{where} cannot be used: {redact(str(reason))}. Check its address (dvc remote list), the "
        "network, and this machine's credentials for it."
    )


def _targets(repo: Repo, name: str, *, everything: bool) -> list[str]:
    """Returns the absolute paths of a command's outputs."""
    with lock_repo(repo):
        outputs = {
            str(out.fs_path): stage
            for stage in repo.index.stages
            for out in stage.outs
            # An output without a hash does not exist yet.
            if out.hash_info and (everything or _is_data(stage))
        }
    if not name:
        return sorted(outputs)
    named = [path for path in outputs if name in (Path(path).name, Path(path).name.split(".")[0])]
    if not named:
        raise _unknown_dataset(name, sorted({Path(path).name for path in outputs}))
    return named


def _is_data(stage: object) -> bool:
    return not isinstance(stage, PipelineStage) or stage.name == DATA_STAGE


def _unknown_dataset(name: str, known: Sequence[str]) -> DvcError:
    there = ", ".join(known) or "none"
    return DvcError(
        f"no dataset {name!r} is tracked here. There are: {there}.{suggest(name, known)} "
        "Track one with: dml data add PATH --name NAME"
    )
