"""The tracking store: its address, a local one where none is named, and links to its pages."""

import fcntl
import json
import logging
import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from dml_core.config.pipeline import MlflowConfig
from tasks.secrets import make_owner_only_file, make_owner_only_folder

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DATABASE_FILE = "mlflow.db"
ARTIFACT_FOLDER = "mlartifacts"

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_PRINT_MODEL_URLS_ON_CREATION": "false",
    # The callers retry; MLflow's own seven retries would block them for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}

# Up to the last @ before a slash; otherwise up to the last @ where no host comes first, since a
# password may contain a slash that should have been encoded.
_CREDENTIALS = re.compile(r"://(?:[^/\s'\"]*@|(?![^/@:\s]*(?::\d*)?/)[^\s'\"]*@)")
UNREADABLE_ADDRESS = (
    "MLFLOW_TRACKING_URI must be https://USER:PASSWORD@HOST:PORT, where / ? # @ : and [ in USER "
    "and PASSWORD are written as %2F %3F %23 %40 %3A and %5B. Got another form, which is not "
    "repeated here. MLFLOW_TRACKING_USERNAME with MLFLOW_TRACKING_PASSWORD, or "
    "MLFLOW_TRACKING_TOKEN, take any text."
)


_opened_files: dict[str, tuple[int, int]] = {}
"""Device and inode of each sqlite file when this process last opened it, by address."""


class TrackingError(ValueError):
    """The tracking store cannot be used; the message names it and a remedy."""


class DamagedDatabase(TrackingError):
    """The sqlite file cannot be used, and waiting does not help."""


@dataclass(frozen=True)
class Tracking:
    """A tracking store that has answered."""

    uri: str
    artifact_root: str | None
    """Where new experiments store their files; None lets the server choose."""

    def client(self) -> "MlflowClient":
        """Returns a client of the store."""
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    @property
    def is_server(self) -> bool:
        """Whether the store is a server with web pages."""
        return self.uri.startswith(("http://", "https://"))


def silence_mlflow() -> None:
    """Turns off telemetry and notices; variables that are already set stay."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.ERROR)


def choose_tracking_uri(
    config: MlflowConfig, *, project: Path, environment: Mapping[str, str] = os.environ
) -> str:
    """Returns mlflow.tracking_uri, else MLFLOW_TRACKING_URI, else a sqlite file in the project.

    Relative sqlite paths are relative to the project's folder.
    """
    chosen = config.tracking_uri or environment.get("MLFLOW_TRACKING_URI", "")
    uri = chosen.strip() or f"sqlite:///{DATABASE_FILE}"
    scheme = _split(uri).scheme
    if scheme in ("", "file"):
        raise TrackingError(
            "mlflow.tracking_uri must be a server's address or a database, because this version "
            f"of MLflow refuses folders of files. Got {hide_credentials(uri)!r}. Leave it empty "
            f"for a sqlite file in this folder, or write sqlite:///{DATABASE_FILE}."
        )
    if scheme != "sqlite":
        return uri
    return f"sqlite:///{(project.resolve() / uri.removeprefix('sqlite:///'))}"


def open_tracking(config: MlflowConfig, *, project: Path) -> Tracking:
    """Returns the tracking store after it has answered; creates a missing sqlite file.

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
    """Returns a server's address without credentials, and sets MLflow's variables to them.

    MLflow repeats the address in its errors, tags and files, and the variables nowhere.

    Raises:
        TrackingError: where the credentials cannot be parsed; it does not repeat the address.
    """
    parts = _split(uri)
    if parts.scheme not in ("http", "https"):
        return uri
    # A token in place of the user would stay in the address.
    if parts.username is not None and not parts.password:
        raise TrackingError(UNREADABLE_ADDRESS)
    if parts.username is None:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _split(uri: str) -> SplitResult:
    """Returns the parts of an address; errors do not repeat it, since it may hold a password."""
    try:
        parts = urlsplit(uri)
        # A slash in a password ends the host early, and the password's start is read as a port.
        is_readable = (parts.port or 1) > 0 and ("://" in uri or "@" not in uri)
    except ValueError:
        is_readable = False
    if not is_readable:
        raise TrackingError(UNREADABLE_ADDRESS)
    return parts


def hide_credentials(uri: str) -> str:
    """Returns an address without a user's name and password."""
    return _CREDENTIALS.sub("://", uri)


def reopen(tracking: Tracking) -> None:
    """Creates the tables of a sqlite file that was deleted or replaced since it was opened.

    Raises:
        DamagedDatabase: where the file cannot be used.
    """
    if tracking.uri.startswith("sqlite:///"):
        _open_database(tracking.uri)


def describe_store(tracking: Tracking) -> str:
    """Returns a store's name for messages: a file's path, or an address without credentials."""
    return hide_credentials(tracking.uri.removeprefix("sqlite:///"))


def _open_database(uri: str) -> Tracking:
    path = Path(uri.removeprefix("sqlite:///"))
    tracking = Tracking(uri, artifact_root=(path.parent / ARTIFACT_FOLDER).as_uri())
    path.parent.mkdir(parents=True, exist_ok=True)
    make_owner_only_folder(path.parent / ARTIFACT_FOLDER)
    with _lock(path.with_name(f"{path.name}.lock")):
        try:
            make_owner_only_file(path)
            _check_is_database(path)
            _make_tables(tracking, path)
            tracking.client().search_experiments(max_results=1)
        except Exception as error:
            raise DamagedDatabase(
                f"MLflow's database {path} cannot be used: {first_line(error)} Move it away (mv "
                f"{path.name} {path.name}.damaged) and run the same command again: the record is "
                "rebuilt from the trials' files. A database of an older MLflow is kept with: "
                f"mlflow db upgrade {uri}"
            ) from error
    return tracking


def _check_is_database(path: Path) -> None:
    """Raises where a file is damaged; MLflow would retry for 20 seconds."""
    if path.exists() and path.stat().st_size:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
            database.execute("select count(*) from sqlite_master").fetchone()


def _make_tables(tracking: Tracking, path: Path) -> None:
    """Creates the tables of an empty file, also of one that was deleted since it was opened."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as RegistryStore
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as TrackingStore

    if _opened_files.get(tracking.uri, _identify(path)) != _identify(path):
        # MLflow's connections stay open and would read the deleted file. It has no public way to
        # close them.
        for store in (TrackingStore, RegistryStore):
            store._get_or_create_engine(tracking.uri).dispose()
    # Noted before as well: an unusable file may be moved away next.
    _opened_files[tracking.uri] = _identify(path)
    TrackingStore(tracking.uri, tracking.artifact_root)
    _opened_files[tracking.uri] = _identify(path)


def _identify(path: Path) -> tuple[int, int]:
    """Returns device and inode, which distinguish files of the same name."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0, 0
    return facts.st_dev, facts.st_ino


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Locks out other processes: two that create the same database would both fail."""
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
                    f"the MLflow server at {address} {state}: {first_line(error)} Start it with: "
                    "dml up, or correct mlflow.tracking_uri (or MLFLOW_TRACKING_URI); empty takes "
                    "a sqlite file in this folder."
                ) from error
        time.sleep(0.5)


def _ask(tracking: Tracking, *, timeout_seconds: float) -> None:
    parts = urlsplit(tracking.uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    # A bare connection fails at once for a wrong address, whatever MLflow's retries are.
    socket.create_connection((parts.hostname or "", port), timeout=timeout_seconds).close()
    limits = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, int(timeout_seconds))),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    with changed_environment(limits):
        tracking.client().search_experiments(max_results=1)


def _is_refusal(error: Exception) -> bool:
    """Returns whether a server answered with an error that waiting does not change."""
    return re.search(r"error code 4\d\d", str(error)) is not None


def first_line(error: BaseException, length: int = 300) -> str:
    """Returns the first line of an error as a sentence, without credentials."""
    lines = hide_credentials(str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0][:length].rstrip(".") + "."


@contextmanager
def changed_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for the block."""
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


@dataclass(frozen=True)
class PageLink:
    """The address of a page of MLflow."""

    path: str
    """The part after the server's address."""
    server: str
    """The server's address; empty where the store is a file that no server shows yet."""

    @property
    def url(self) -> str:
        """The whole address, or its path where there is no server."""
        return f"{self.server}{self.path}"


def link_comparison(
    tracking: Tracking, *, experiment_ids: Sequence[str], run_ids: Sequence[str]
) -> PageLink:
    """Returns the page that compares runs side by side."""
    runs, experiments = _encode(run_ids), _encode(experiment_ids)
    path = f"/#/compare-runs?runs={runs}&experiments={experiments}"
    return PageLink(path, _server_of(tracking))


def _server_of(tracking: Tracking) -> str:
    return hide_credentials(tracking.uri).rstrip("/") if tracking.is_server else ""


def _encode(values: Sequence[str]) -> str:
    return quote(json.dumps(list(values), separators=(",", ":")), safe="")
