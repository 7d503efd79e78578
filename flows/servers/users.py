"""Users of the MLflow server of `dml up`, each with a password in a file to hand over.

They read all runs, and change only experiments that they created themselves. Prefect's server has
one user: whoever may start runs there may run programs on the machine.
"""

import re
import secrets
from pathlib import Path
from typing import Any

from flows.servers.access import USER, authorization, sign_in_to_prefect
from flows.servers.network import Answer, NoAnswer, ask
from flows.servers.record import ServerRecord, load_records, state_folder
from tasks.secrets import make_owner_only_file, make_owner_only_folder

_NAME = re.compile(r"[a-z][a-z0-9._-]{0,31}")
_TIMEOUT_SECONDS = 20.0


def list_users(folder: Path) -> list[str]:
    """Returns the names of the users of a folder's MLflow server, in order."""
    answer = _call(folder, "GET", "list")
    return sorted(str(user["username"]) for user in (answer.content or {}).get("users", []))


def add_user(folder: Path, name: str) -> Path:
    """Creates a user with a random password; returns the file that holds it.

    Raises:
        ValueError: if the name is not allowed or taken, or the server is not up.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            "a user's name must begin with a letter and have at most 32 lower-case letters, "
            f"digits, dots, - and _. Got {name!r}."
        )
    if name in list_users(folder):
        raise ValueError(
            f"the MLflow server already has a user {name!r}. For a new password: "
            f"dml users --remove {name}, then dml users --add {name}"
        )
    password = secrets.token_urlsafe(24)
    path = make_owner_only_file(_password_file(folder, name))
    path.write_text(password + "\n", encoding="utf-8")
    _call(folder, "POST", "create", {"username": name, "password": password})
    return path


def remove_user(folder: Path, name: str) -> None:
    """Removes a user and the file with the password; the user's runs stay.

    Raises:
        ValueError: if there is no such user, or it is the owner, or the server is not up.
    """
    if name == USER:
        raise ValueError(f"user {USER} owns the servers and cannot be removed.")
    known = list_users(folder)
    if name not in known:
        raise ValueError(f"the MLflow server has no user {name!r}. It has: {', '.join(known)}.")
    _call(folder, "DELETE", "delete", {"username": name})
    _password_file(folder, name).unlink(missing_ok=True)


def _password_file(folder: Path, name: str) -> Path:
    return make_owner_only_folder(state_folder(folder) / "users") / name


def _call(folder: Path, method: str, what: str, content: Any = None) -> Answer:
    record = _find_server(folder)
    try:
        answer = ask(
            method,
            f"{record.address}/api/2.0/mlflow/users/{what}",
            timeout_seconds=_TIMEOUT_SECONDS,
            content=content,
            # Both servers have the same owner and password.
            headers=authorization(sign_in_to_prefect(record)),
        )
    except NoAnswer as error:
        raise ValueError(
            f"the MLflow server at {record.address} does not answer: {error}. See: dml status"
        ) from error
    if answer.status != 200:
        raise ValueError(
            f"the MLflow server at {record.address} answers {answer.status} to users/{what}. See "
            f"its log: {record.log}"
        )
    return answer


def _find_server(folder: Path) -> ServerRecord:
    record = load_records(folder).get("mlflow")
    if record is None or not record.is_alive:
        raise ValueError("users are kept by the MLflow server, which is not up. Run: dml up")
    return record
