"""Moves tracked bytes between this machine and a DVC remote."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.lock import LockError
from dvc.repo import Repo, lock_repo
from dvc.stage import PipelineStage

from dml_core.config.problems import suggest
from tasks.adapters.dvc_session import ABSENCE, ADD_REMOTE, DvcError, open_repo, redact

DATA_STAGE = "prepare"
# Parts of the names of settings that hold a secret, in any of DVC's kinds of remote.
_SECRET_WORDS = ("password", "secret", "token", "access_key", "account_key", "connection_string")


@dataclass(frozen=True)
class Remote:
    """Where a remote is and how to reach it, without anything secret."""

    name: str
    settings: Mapping[str, Any]
    """DVC's settings of the remote: `url` and, say, `endpointurl` and `region`."""

    @property
    def shown_url(self) -> str:
        """Address for messages."""
        return redact(str(self.settings["url"]))


def read_remote(folder: Path, name: str = "") -> Remote:
    """Returns the named remote of a project, or its default one.

    Passwords and keys are left out, so that what comes back may travel to other machines and
    into logs; those machines have credentials of their own.
    """
    with open_repo(folder) as repo:
        chosen = name or repo.config["core"].get("remote", "")
        remotes = repo.config["remote"]
        if not chosen:
            raise DvcError(
                f"the DVC project at {folder} has no default remote, which data are kept in and "
                f"fetched from. Run: {ADD_REMOTE}"
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
        everything: also what the later stages wrote.
    """
    chosen = read_remote(folder, remote)
    with open_repo(folder) as repo:
        targets = _targets(repo, "", everything=everything)
        with moving(repo, chosen):
            return int(repo.push(targets=targets, remote=chosen.name)) if targets else 0


def pull_data(
    folder: Path, name: str = "", *, remote: str = "", everything: bool = False
) -> list[str]:
    """Downloads datasets that are not here, and returns which paths changed.

    Args:
        folder: the root of the project.
        name: one dataset, raw or prepared; empty takes all.
        remote: name of the remote; empty takes the default one.
        everything: also what the later stages wrote.
    """
    source = read_remote(folder, remote)
    with open_repo(folder) as repo:
        targets = _targets(repo, name, everything=everything)
        if not targets:
            return []
        with moving(repo, source):
            done = repo.pull(targets=targets, remote=source.name)
        return [str(path) for kind in ("added", "modified") for path in done.get(kind, [])]


@contextmanager
def moving(repo: Repo, remote: Remote) -> Iterator[None]:
    """Turns what goes wrong on the way to or from a remote into a DvcError with its reason."""
    try:
        yield
    except LockError:
        raise
    # Each kind of storage raises errors of its own library, so all are caught.
    except Exception as error:
        reason = _probe(repo, remote) if isinstance(error, ABSENCE) else error
        raise _describe(remote, reason) from error


def _probe(repo: Repo, remote: Remote) -> Exception | None:
    """Why a remote cannot be read; None if it can. DVC itself tells both as missing files."""
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
    """Absolute paths of the outputs that a command is about."""
    with lock_repo(repo):
        outputs = {
            str(out.fs_path): stage
            for stage in repo.index.stages
            for out in stage.outs
            # An output without a hash was never made, so there is nothing to move.
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
