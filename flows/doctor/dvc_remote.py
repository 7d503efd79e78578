"""The DVC remote: reachable, and with the data that nodes would fetch."""

from pathlib import Path
from typing import Any

from flows.doctor.findings import Finding, broken, first_line, ok, warning
from flows.doctor.request import DoctorRequest
from tasks.study import StudyContext, load_context
from tasks.versioning.fetch import locate_prepared
from tasks.versioning.remote import Remote, read_remote
from tasks.versioning.session import ADD_REMOTE, DvcError, has_repo, open_repo

CHECK = (
    "Check its address (dvc remote list), the network, and this machine's credentials for it; a "
    "folder must be mounted"
)
_LAYOUT = "/files/md5"
"""Where DVC keeps its objects below a remote's address."""
PUSH = "Push the data from the machine that has them: dml data push"


def probe(request: DoctorRequest) -> list[Finding]:
    """Looks into the remote; nothing is written to it."""
    context = load_context(request.study)
    access = context.project.pipeline.data_access
    if not has_repo(Path.cwd()):
        if access.mode == "dvc":
            return [broken("dvc", "this folder is no DVC project", "Run: dvc init")]
        return [ok("dvc", "this folder is no DVC project; runs are not versioned")]
    try:
        remote = read_remote(Path.cwd(), access.remote)
    except DvcError as error:
        return [_tell_no_remote(error, is_needed=access.mode == "dvc" or bool(access.remote))]
    return check_remote(context, remote)


def _tell_no_remote(error: DvcError, *, is_needed: bool) -> Finding:
    if is_needed:
        message = str(error).partition(" Run:")[0].partition(" Add it with:")[0]
        return broken("dvc", message, f"Run: {ADD_REMOTE}")
    return ok("dvc", "no remote is set, data stay on this machine (data_access.mode=shared)")


def check_remote(context: StudyContext, remote: Remote) -> list[Finding]:
    """Tells whether the remote can be read, and what it has of the plan's data."""
    where = f"the remote {remote.name!r} ({remote.shown_url})"
    is_needed = context.project.pipeline.data_access.mode == "dvc"
    with open_repo(Path.cwd()) as repo:
        try:
            storage = repo.cloud.get_remote_odb(remote.name)
            if not _is_there(storage):
                return [broken("dvc", f"{where} is not there", CHECK)]
        # Each kind of storage raises errors of its own library, so all are caught.
        except Exception as error:
            return [broken("dvc", f"{where} cannot be used: {first_line(error)}", CHECK)]
    return [
        ok("dvc", f"{where} can be read"),
        *_check_data(context, remote.name, where, is_needed=is_needed),
    ]


def _is_there(storage: Any) -> bool:
    """Whether the folder or bucket exists; an empty one does."""
    try:
        storage.fs.ls(storage.path)
        return True
    except FileNotFoundError:
        # Nothing was pushed yet, or the place itself is gone. Folders in a bucket are made by
        # writing, so that of it the bucket is enough.
        place = storage.path.removesuffix(_LAYOUT)
        is_bucket = storage.fs.protocol != "local"
        return bool(storage.fs.exists(place.split("/")[0] if is_bucket else place))


def _check_data(context: StudyContext, name: str, where: str, *, is_needed: bool) -> list[Finding]:
    findings = []
    for data in context.datasets:
        try:
            source = locate_prepared(Path.cwd(), data.prepared_path, remote=name)
        except DvcError as error:
            if is_needed:
                findings.append(
                    broken("dvc", first_line(error), "Run: dvc repro prepare; dml data push")
                )
            continue
        with open_repo(Path.cwd()) as repo:
            storage = repo.cloud.get_remote_odb(source.remote.name)
            has_it = bool(storage.exists(source.md5))
        if has_it:
            findings.append(ok("dvc", f"{where} has {data.prepared_path}"))
        else:
            state = broken if is_needed else warning
            findings.append(state("dvc", f"{where} lacks {data.prepared_path} of dvc.lock", PUSH))
    return findings
