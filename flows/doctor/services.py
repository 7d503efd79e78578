"""The services that a run uses: Prefect, MLflow, the DVC remote and the bucket of the trials."""

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dml_core.config.pipeline import MlflowConfig
from dml_core.trials.objects import BucketRefused, ObjectFolder
from flows.doctor.environment import find_version
from flows.doctor.nodes import CLOCK_BROKEN_SECONDS, judge_clock
from flows.doctor.probes import (
    DoctorRequest,
    Finding,
    broken,
    first_line,
    nearest_folder,
    ok,
    warning,
)
from flows.servers.access import authorization
from flows.servers.network import NoAnswer, ask
from tasks.study import StudyContext, load_context
from tasks.tracking.address import (
    ARTIFACT_FOLDER,
    Tracking,
    TrackingError,
    choose_tracking_uri,
    hide_credentials,
    open_tracking,
)
from tasks.versioning.copies import locate_prepared
from tasks.versioning.remote import Remote, read_remote
from tasks.versioning.session import ADD_REMOTE, DvcError, has_repo, open_repo

CHECK_STORAGE = (
    "Check the address, the network and AWS_ENDPOINT_URL. The credentials must allow listing, "
    "reading, writing and deleting below it"
)
_WAITING_SHARE = 0.2
"""Fraction of the time for each of the requests below."""
START_PREFECT = "Start it with: dml up, or unset PREFECT_API_URL to run without a server"
CANNOT_WRITE = (
    "Give this user the right to write, free its disk, look into the server's log "
    "(.dml/logs/mlflow.log), or let mlflow.tracking_uri name another store"
)
CHECK_REMOTE = (
    "Check its address (dvc remote list), the network, and this machine's credentials for it; a "
    "folder must be mounted"
)
PUSH = "Push the data from the machine that has them: dml data push"
_NUM_PREFECT_REQUESTS = 4
"""One after the other; each may take a fourth of the time."""
_MLFLOW_WAITING_SHARE = 0.3
"""Fraction of the time for MLflow's first answer."""
_DVC_LAYOUT = "/files/md5"
"""Folder of DVC's objects below a remote's address."""


def probe_prefect(request: DoctorRequest) -> list[Finding]:
    """Checks the server that a run would use; creates a variable there and removes it."""
    if not request.prefect_url:
        return [
            ok("prefect", "no server is set; a run starts its own (dml up starts one that stays)")
        ]
    url, limit = request.prefect_url.rstrip("/"), request.timeout_seconds / _NUM_PREFECT_REQUESTS
    where = f"the server at {url} ({request.prefect_source})"
    try:
        health = ask("GET", f"{url}/health", timeout_seconds=limit)
        if health.status != 200:
            return [broken("prefect", f"{where} answers with {health.status}", START_PREFECT)]
        version = _check_prefect_version(url, where, limit)
        writing = _check_prefect_writing(url, where, limit)
    except NoAnswer as error:
        return [broken("prefect", f"{where} does not answer: {error}", START_PREFECT)]
    # The server's clock decides when a schedule comes due; its Date header has whole seconds.
    offset = health.clock_offset_seconds
    clock = judge_clock(where, offset, error_seconds=0.0, limit_seconds=CLOCK_BROKEN_SECONDS)
    return [version, writing, clock]


def _check_prefect_version(url: str, where: str, limit: float) -> Finding:
    answer = ask("GET", f"{url}/admin/version", timeout_seconds=limit, headers=authorization())
    here = find_version("prefect")
    if answer.status == 200 and isinstance(answer.content, str) and answer.content != here:
        return warning(
            "prefect",
            f"{where} is of version {answer.content}, and this machine has {here}",
            "Install the version of requirements.lock on both",
        )
    return ok("prefect", f"{where} answers, version {here}")


def _check_prefect_writing(url: str, where: str, limit: float) -> Finding:
    name = f"dml_doctor_{secrets.token_hex(4)}"
    content = {"name": name, "value": "may be removed"}
    made = ask(
        "POST",
        f"{url}/variables/",
        timeout_seconds=limit,
        content=content,
        headers=authorization(),
    )
    if made.status in (401, 403):
        return broken(
            "prefect",
            f"{where} refuses the credentials ({made.status})",
            "Set PREFECT_API_AUTH_STRING to user:password as the server has it",
        )
    if made.status not in (200, 201):
        return broken(
            "prefect",
            f"{where} accepts no writes: it answers {made.status} to a new variable",
            "Look into its log (.dml/logs/prefect.log); its database may be full, locked or "
            "read-only",
        )
    removed = ask(
        "DELETE", f"{url}/variables/name/{name}", timeout_seconds=limit, headers=authorization()
    )
    if removed.status not in (200, 204):
        return warning(
            "prefect",
            f"{where} kept the variable {name} of this check ({removed.status})",
            f"Remove it: prefect variable unset {name}",
        )
    return ok("prefect", f"{where} can be written to")


def probe_mlflow(request: DoctorRequest) -> list[Finding]:
    """Checks the store that a run would use; creates a registered model there and removes it."""
    config = load_context(request.study).project.pipeline.mlflow
    try:
        uri = choose_tracking_uri(config, project=Path.cwd())
    except TrackingError as error:
        return [broken("mlflow", *_split_remedy(error))]
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return [_check_folder(Path(uri.removeprefix("sqlite:///")).parent)]
    return _check_mlflow_store(config, uri, limit=request.timeout_seconds * _MLFLOW_WAITING_SHARE)


def _check_folder(folder: Path) -> Finding:
    """Checks that a first run could create its database in a folder."""
    nearest = nearest_folder(folder)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return ok("mlflow", f"there is no store yet; the first run creates it in {folder}")
    return broken("mlflow", f"this user may not write to {nearest}", CANNOT_WRITE)


def _check_mlflow_store(config: MlflowConfig, uri: str, *, limit: float) -> list[Finding]:
    shown = hide_credentials(uri)
    try:
        tracking = open_tracking(
            config.model_copy(update={"timeout_seconds": limit}), project=Path.cwd()
        )
    except TrackingError as error:
        return [broken("mlflow", *_split_remedy(error))]
    except OSError as error:
        return [broken("mlflow", f"{shown} cannot be opened: {first_line(error)}", CANNOT_WRITE)]
    return [_check_mlflow_writing(tracking, shown), *_check_artifacts(tracking, shown)]


def _check_mlflow_writing(tracking: Tracking, shown: str) -> Finding:
    name = f"dml-doctor-{secrets.token_hex(4)}"
    client = tracking.client()
    try:
        # A registered model can be removed without a trace, unlike a run.
        client.create_registered_model(name)
    except Exception as error:
        return broken("mlflow", f"{shown} cannot be written to: {first_line(error)}", CANNOT_WRITE)
    try:
        client.delete_registered_model(name)
    except Exception as error:
        return warning(
            "mlflow",
            f"{shown} kept the registered model {name} of this check: {first_line(error)}",
            "Remove it on the page of models",
        )
    return ok("mlflow", f"{shown} answers and can be written to")


def _check_artifacts(tracking: Tracking, shown: str) -> list[Finding]:
    """Checks that a local artifact path is writable; other artifacts go through the server."""
    location = tracking.artifact_root or ""
    if tracking.is_server:
        found = tracking.client().search_experiments(max_results=1)
        location = found[0].artifact_location if found else ""
    scheme = urlsplit(location).scheme
    if scheme not in ("", "file") or not location:
        return []
    folder = Path(unquote(urlsplit(location).path))
    nearest = nearest_folder(folder)
    if os.access(nearest, os.W_OK) and nearest.is_dir():
        return [ok("mlflow", f"artifacts go to {folder}")]
    return [
        broken(
            "mlflow",
            f"artifacts of {shown} go to {folder}, where this user may not write",
            f"Give this user the right to, or start the server with --serve-artifacts "
            f"({ARTIFACT_FOLDER} behind it)",
        )
    ]


def _split_remedy(error: TrackingError) -> tuple[str, str]:
    """Returns the problem and the remedy of a message."""
    text = str(error)
    for start in (" Start it with", " Leave it empty", " Move the file"):
        head, found, tail = text.partition(start)
        if found:
            return head.rstrip(". "), (found + tail).strip()
    return text, CANNOT_WRITE


def probe_dvc(request: DoctorRequest) -> list[Finding]:
    """Checks that the remote can be read and has the data; writes nothing."""
    context = load_context(request.study)
    access = context.project.pipeline.data_access
    if not has_repo(Path.cwd()):
        if access.mode == "dvc":
            return [broken("dvc", "this folder is no DVC project", "Run: dvc init")]
        return [ok("dvc", "this folder is no DVC project; runs are not versioned")]
    try:
        remote = read_remote(Path.cwd(), access.remote)
    except DvcError as error:
        return [_report_no_remote(error, is_needed=access.mode == "dvc" or bool(access.remote))]
    return check_remote(context, remote)


def _report_no_remote(error: DvcError, *, is_needed: bool) -> Finding:
    if is_needed:
        message = str(error).partition(" Run:")[0].partition(" Add it with:")[0]
        return broken("dvc", message, f"Run: {ADD_REMOTE}")
    return ok("dvc", "no remote is set; data stay on this machine (data_access.mode=shared)")


def check_remote(context: StudyContext, remote: Remote) -> list[Finding]:
    """Checks that the remote can be read and has the data of the plan."""
    where = f"the remote {remote.name!r} ({remote.shown_url})"
    is_needed = context.project.pipeline.data_access.mode == "dvc"
    with open_repo(Path.cwd()) as repo:
        try:
            storage = repo.cloud.get_remote_odb(remote.name)
            if not _is_there(storage):
                return [broken("dvc", f"{where} is not there", CHECK_REMOTE)]
        # Each kind of storage raises the errors of its own library.
        except Exception as error:
            return [broken("dvc", f"{where} cannot be used: {first_line(error)}", CHECK_REMOTE)]
    return [
        ok("dvc", f"{where} can be read"),
        *_check_remote_data(context, remote.name, where, is_needed=is_needed),
    ]


def _is_there(storage: Any) -> bool:
    """Returns whether the folder or bucket exists, even if it is empty."""
    try:
        storage.fs.ls(storage.path)
        return True
    except FileNotFoundError:
        # Nothing was pushed yet, or the place itself is gone. Writing creates the folders of a
        # bucket, so that the bucket is enough.
        place = storage.path.removesuffix(_DVC_LAYOUT)
        is_bucket = storage.fs.protocol != "local"
        return bool(storage.fs.exists(place.split("/")[0] if is_bucket else place))


def _check_remote_data(
    context: StudyContext, name: str, where: str, *, is_needed: bool
) -> list[Finding]:
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


def probe_storage(request: DoctorRequest) -> list[Finding]:
    """Writes, reads, lists and removes an object; nothing is done without sweep.storage."""
    location = load_context(request.study).project.pipeline.sweep.storage
    if not location:
        return [
            ok("storage", "sweep.storage is not set; trials are files below sweep.results_root")
        ]
    return [check_storage(location, limit_seconds=request.timeout_seconds * _WAITING_SHARE)]


def check_storage(location: str, *, limit_seconds: float) -> Finding:
    """Checks that a sweep can use an address."""
    name, content = f"doctor-{secrets.token_hex(4)}", b"may be removed"
    where = f"sweep.storage={location}"
    try:
        objects = ObjectFolder(location).impatient(limit_seconds)
        objects.write(name, content)
        has_read, has_listed = objects.read(name) == content, name in objects.list_objects("")
        objects.remove([name])
    except BucketRefused as error:
        problem, _, remedy = str(error).partition(". ")
        return broken("storage", problem, remedy or CHECK_STORAGE)
    # As above: the errors depend on the kind of storage.
    except Exception as error:
        return broken("storage", f"{where} cannot be used: {first_line(error)}", CHECK_STORAGE)
    if not has_read or not has_listed:
        return broken("storage", f"{where} lacks an object that was just written", CHECK_STORAGE)
    return ok("storage", f"{where} answers and can be written to")
