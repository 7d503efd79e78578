"""Access to the servers of `dml up`: one user, with a password in a file that only the owner reads.

Prefect's server compares one string, `dml:PASSWORD`; MLflow's has a user `dml`. Programs get the
password in their environment, which other users cannot read, and never on their command line.
"""

import base64
import importlib.util
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from flows.servers.record import ServerRecord, make_state_folder, state_folder
from tasks.secrets import close_to_others, make_owner_only_file

LOGGER = logging.getLogger(__name__)
USER = "dml"
PREFECT_FILE = "PREFECT_API_AUTH_STRING_FILE"
MLFLOW_FILE = "MLFLOW_TRACKING_PASSWORD_FILE"
_PASSWORD_FILE = "password"  # noqa: S105
_MLFLOW_USERS = "mlflow-users.db"
_MLFLOW_SETTINGS = "mlflow-users.ini"
_MLFLOW_SETTINGS_TEXT = """\
[mlflow]
database_uri = sqlite:///{database}
default_permission = READ
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
# Comparing a password with its hash takes 0.1 s, and a page sends many requests.
auth_cache_ttl_seconds = 600
"""


def password_file(folder: Path) -> Path:
    """Returns the file that holds the password of a project folder's servers."""
    return state_folder(folder) / _PASSWORD_FILE


def ensure_password(folder: Path) -> str:
    """Returns the password of a folder's servers; the first call creates it.

    Raises:
        ValueError: if the file is empty, or is missing while MLflow still has the password.
    """
    make_state_folder(folder)
    path = password_file(folder)
    users = state_folder(folder) / _MLFLOW_USERS
    if not path.exists():
        if users.exists():
            raise ValueError(
                f"{path} is missing, but MLflow keeps that password's hash in {users}. Restore "
                f"the file, or remove {users.name} too (with all users in it) for a new password."
            )
        # Atomic: an empty file would be a lost password.
        temporary = make_owner_only_file(path.with_suffix(".partial"))
        temporary.write_text(secrets.token_urlsafe(24) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    close_to_others(path)
    return read_password(path)


def read_password(path: Path) -> str:
    """Returns the password in a file; raises ValueError if there is none."""
    is_there = path.exists()
    password = path.read_text(encoding="utf-8").strip() if is_there else ""
    if not password:
        raise ValueError(
            f"{path} must hold the password of the servers, and "
            f"{'is empty' if is_there else 'is missing'}. Restore it, or make a new one: dml down, "
            f"remove {path.name} and {_MLFLOW_USERS} in {path.parent}, then dml up"
        )
    return password


def sign_in_by_files() -> None:
    """Sets the variables that sign in to a team's servers from files that hold the passwords.

    `PREFECT_API_AUTH_STRING_FILE` holds user:password, or the password of user `dml` alone;
    `MLFLOW_TRACKING_PASSWORD_FILE` holds that of MLFLOW_TRACKING_USERNAME, by default `dml`. So a
    nightly run needs no secret in its command line or crontab. Variables that are set stay.

    Raises:
        ValueError: if a file is missing or empty.
    """
    if (path := os.environ.get(PREFECT_FILE)) and not os.environ.get("PREFECT_API_AUTH_STRING"):
        found = _read_secret(path, PREFECT_FILE)
        os.environ["PREFECT_API_AUTH_STRING"] = found if ":" in found else f"{USER}:{found}"
    if (path := os.environ.get(MLFLOW_FILE)) and not os.environ.get("MLFLOW_TRACKING_PASSWORD"):
        os.environ["MLFLOW_TRACKING_PASSWORD"] = _read_secret(path, MLFLOW_FILE)
        os.environ.setdefault("MLFLOW_TRACKING_USERNAME", USER)


def _read_secret(path: str, variable: str) -> str:
    try:
        secret = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{variable} must name a file with a password: {error}.") from error
    if not secret:
        raise ValueError(f"{variable} must name a file with a password, and {path} is empty.")
    if Path(path).expanduser().stat().st_mode & 0o077:
        LOGGER.warning("others can read the password in %s. Run: chmod 600 %s", path, path)
    return secret


def prefect_sign_in(password: str) -> dict[str, str]:
    """Returns the variable with which Prefect's clients sign in."""
    return {"PREFECT_API_AUTH_STRING": f"{USER}:{password}"}


def prefect_server_settings(password: str, *, origin: str) -> dict[str, str]:
    """Returns the variables that make a Prefect server require the password.

    Args:
        password: of the server.
        origin: address of its own pages; scripts of other pages cannot read its answers.
    """
    return {
        "PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{password}",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origin,
        # The server's own services are clients of its API.
        **prefect_sign_in(password),
    }


def mlflow_server_settings(folder: Path, password: str) -> dict[str, str]:
    """Writes an MLflow server's settings file; returns variables that make it require the password.

    Raises:
        ValueError: if the package that MLflow needs for this is not installed.
    """
    if importlib.util.find_spec("flask_wtf") is None:
        raise ValueError(
            "the MLflow server cannot require a password without the package Flask-WTF, and a "
            "server without one is not started. Install the locked packages: make setup"
        )
    state = make_state_folder(folder)
    users = make_owner_only_file(state / _MLFLOW_USERS)
    settings = make_owner_only_file(state / _MLFLOW_SETTINGS)
    # A percent sign starts a variable in such a file.
    text = _MLFLOW_SETTINGS_TEXT.format(database=str(users).replace("%", "%%"))
    settings.write_text(text, encoding="utf-8")
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(settings),
        "MLFLOW_AUTH_ADMIN_USERNAME": USER,
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        # Signs the forms of its pages; one process serves them, so that any key works.
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_urlsafe(24),
    }


def sign_in_to_prefect(record: ServerRecord) -> dict[str, str]:
    """Returns the variable with which clients sign in to a Prefect server of `dml up`."""
    if not record.password_file:
        return {}
    return prefect_sign_in(read_password(Path(record.password_file)))


def address_with_password(record: ServerRecord) -> str:
    """Returns an MLflow server's address with user and password.

    tasks/tracking/address.py takes them out of the address, so that they reach this server and
    no other that the parameters may name.
    """
    if not record.password_file:
        return record.address
    password = quote(read_password(Path(record.password_file)), safe="")
    parts = urlsplit(record.address)
    return parts._replace(netloc=f"{USER}:{password}@{parts.netloc}").geturl()


def authorization(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the header that signs in to a Prefect server, from Prefect's own variables."""
    chosen = environment.get("PREFECT_API_AUTH_STRING", "")
    key = environment.get("PREFECT_API_KEY", "")
    if chosen:
        return {"Authorization": f"Basic {base64.b64encode(chosen.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"} if key else {}
