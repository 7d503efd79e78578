"""Finds the tracking store, makes a local one where none is named, and checks that it answers."""

import fcntl
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dml_core.config.pipeline import MlflowConfig

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DATABASE_FILE = "mlflow.db"
ARTIFACT_FOLDER = "mlartifacts"

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_PRINT_MODEL_URLS_ON_CREATION": "false",
    # Whoever calls retries by himself; MLflow's own seven tries would hold him up for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


class TrackingError(ValueError):
    """The tracking store cannot be used; the message names it and what to do."""


@dataclass(frozen=True)
class Tracking:
    """A tracking store that has answered."""

    uri: str
    artifact_root: str | None
    """Where new experiments keep their files; None leaves it to the server."""

    def client(self) -> "MlflowClient":
        """Returns a client of the store."""
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    @property
    def is_server(self) -> bool:
        """Whether the store is a server with pages to look at."""
        return self.uri.startswith(("http://", "https://"))


def silence_mlflow() -> None:
    """Turns off telemetry and chatter; what the environment already says stays."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.ERROR)


def choose_tracking_uri(
    config: MlflowConfig, *, project: Path, environment: Mapping[str, str] = os.environ
) -> str:
    """Returns mlflow.tracking_uri, else MLFLOW_TRACKING_URI, else a sqlite file in the project.

    Relative sqlite paths are taken from the project's folder.
    """
    chosen = config.tracking_uri or environment.get("MLFLOW_TRACKING_URI", "")
    uri = chosen.strip() or f"sqlite:///{DATABASE_FILE}"
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        raise TrackingError(
            "mlflow.tracking_uri must be a server's address or a database, because this version "
            f"of MLflow refuses folders of files. Got {uri!r}. Leave it empty for a sqlite file "
            f"in this folder, or write sqlite:///{DATABASE_FILE}."
        )
    if scheme != "sqlite":
        return uri
    return f"sqlite:///{(project.resolve() / uri.removeprefix('sqlite:///'))}"


def open_tracking(config: MlflowConfig, *, project: Path) -> Tracking:
    """Returns the tracking store after it has answered; a sqlite file is made where it is missing.

    Raises:
        TrackingError: when it does not answer within mlflow.timeout_seconds.
    """
    silence_mlflow()
    uri = take_credentials(choose_tracking_uri(config, project=project))
    if uri.startswith("sqlite:///"):
        return _open_database(uri)
    tracking = Tracking(uri, artifact_root=None)
    if tracking.is_server:
        _wait_for_server(tracking, timeout_seconds=config.timeout_seconds)
    return tracking


def take_credentials(uri: str) -> str:
    """Returns a server's address without user and password, which MLflow then finds elsewhere.

    MLflow repeats the address in its errors, tags and files. It takes user and password from two
    variables just as well, and repeats those nowhere.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.password is None:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username or "")
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def hide_credentials(uri: str) -> str:
    """Returns an address without a user's name and password."""
    return re.sub(r"://[^/@\s]*@", "://", uri)


def _open_database(uri: str) -> Tracking:
    path = Path(uri.removeprefix("sqlite:///"))
    tracking = Tracking(uri, artifact_root=(path.parent / ARTIFACT_FOLDER).as_uri())
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.with_name(f"{path.name}.lock")):
        try:
            tracking.client().search_experiments(max_results=1)
        except Exception as error:
            raise TrackingError(
                f"{uri} cannot be used as MLflow's database: {_first_line(error)} Move the file "
                "away, bring it up to date with `mlflow db upgrade`, or set mlflow.tracking_uri."
            ) from error
    return tracking


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lets one process at a time in: two that create the same database would both fail."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _wait_for_server(tracking: Tracking, *, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    address = hide_credentials(tracking.uri)
    while True:
        remaining = max(deadline - time.monotonic(), 0.5)
        try:
            _ask(tracking, timeout_seconds=remaining)
            return
        except Exception as error:
            is_final = _is_refusal(error)
            if is_final or time.monotonic() + 0.5 >= deadline:
                state = "refuses" if is_final else f"does not answer within {timeout_seconds:g} s"
                raise TrackingError(
                    f"the MLflow server at {address} {state}: {_first_line(error)} Start it with: "
                    "dml up, or correct mlflow.tracking_uri (or MLFLOW_TRACKING_URI); empty takes "
                    "a sqlite file in this folder."
                ) from error
        time.sleep(0.5)


def _ask(tracking: Tracking, *, timeout_seconds: float) -> None:
    parts = urlsplit(tracking.uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    # A bare connection tells a wrong address at once, whatever MLflow's retries are set to.
    socket.create_connection((parts.hostname or "", port), timeout=timeout_seconds).close()
    limits = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, int(timeout_seconds))),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    with changed_environment(limits):
        tracking.client().search_experiments(max_results=1)


def _is_refusal(error: Exception) -> bool:
    """Whether a server answered, and waiting would not change the answer."""
    return re.search(r"error code 4\d\d", str(error)) is not None


def _first_line(error: Exception) -> str:
    lines = hide_credentials(str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].rstrip(".") + "."


@contextmanager
def changed_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for a while."""
    before: dict[str, Any] = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
