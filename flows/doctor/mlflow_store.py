"""The MLflow store: reachable and writable."""

import os
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dml_core.config.pipeline import MlflowConfig
from flows.doctor.findings import Finding, broken, first_line, ok, warning
from flows.doctor.request import DoctorRequest
from tasks.study import load_context
from tasks.tracking.address import (
    ARTIFACT_FOLDER,
    Tracking,
    TrackingError,
    choose_tracking_uri,
    hide_credentials,
    open_tracking,
)

_WAITING_SHARE = 0.3
"""Of the time, for the first answer."""
CANNOT_WRITE = (
    "Give this user the right to write, free its disk, look into the server's log "
    "(.dml/logs/mlflow.log), or let mlflow.tracking_uri name another store"
)


def probe(request: DoctorRequest) -> list[Finding]:
    """Opens the store that runs would use; it gets a registered model, which is removed again."""
    config = load_context(request.study).project.pipeline.mlflow
    try:
        uri = choose_tracking_uri(config, project=Path.cwd())
    except TrackingError as error:
        return [broken("mlflow", *_split(error))]
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return [check_folder(Path(uri.removeprefix("sqlite:///")).parent)]
    return _check_store(config, uri, limit=request.timeout_seconds * _WAITING_SHARE)


def check_folder(folder: Path) -> Finding:
    """Tells whether a first run could make its database in a folder."""
    nearest = folder
    while not nearest.exists():
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return ok("mlflow", f"there is no record yet, the first run makes it in {folder}")
    return broken("mlflow", f"this user may not write to {nearest}", CANNOT_WRITE)


def _check_store(config: MlflowConfig, uri: str, *, limit: float) -> list[Finding]:
    shown = hide_credentials(uri)
    try:
        tracking = open_tracking(
            config.model_copy(update={"timeout_seconds": limit}), project=Path.cwd()
        )
    except TrackingError as error:
        return [broken("mlflow", *_split(error))]
    except OSError as error:
        return [broken("mlflow", f"{shown} cannot be opened: {first_line(error)}", CANNOT_WRITE)]
    return [_check_writing(tracking, shown), *_check_artifacts(tracking, shown)]


def _check_writing(tracking: Tracking, shown: str) -> Finding:
    name = f"dml-doctor-{secrets.token_hex(4)}"
    client = tracking.client()
    try:
        # Of all that MLflow keeps, this can be taken back without a trace.
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
    """Files that go over the server are its own matter; a path must be writable here."""
    location = tracking.artifact_root or ""
    if tracking.is_server:
        found = tracking.client().search_experiments(max_results=1)
        location = found[0].artifact_location if found else ""
    scheme = urlsplit(location).scheme
    if scheme not in ("", "file") or not location:
        return []
    folder = Path(unquote(urlsplit(location).path))
    nearest = folder
    while not nearest.exists():
        nearest = nearest.parent
    if os.access(nearest, os.W_OK) and nearest.is_dir():
        return [ok("mlflow", f"its files go to {folder}")]
    return [
        broken(
            "mlflow",
            f"files of {shown} go to {folder}, where this user may not write",
            f"Give this user the right to, or start the server with --serve-artifacts "
            f"({ARTIFACT_FOLDER} behind it)",
        )
    ]


def _split(error: TrackingError) -> tuple[str, str]:
    """A message's first part, and what it says to do."""
    text = str(error)
    for start in (" Start it with", " Leave it empty", " Move the file"):
        head, found, tail = text.partition(start)
        if found:
            return head.rstrip(". "), (found + tail).strip()
    return text, CANNOT_WRITE
