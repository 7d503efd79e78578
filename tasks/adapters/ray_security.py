"""Who may reach a Ray cluster: this user alone, by a token and on loopback."""

import logging
import os
import secrets
import sys
from pathlib import Path

from tasks.guardian import guarded_folder


class RayUnsafe(ValueError):
    """A cluster would be open to everybody; the message says what to set."""


def provide_token() -> None:
    """Lets a cluster of our own accept nobody but this user, by a token that only he can read."""
    # Ray reads the mode when it is imported; later it turns tokens on by itself where none is set.
    if "ray" not in sys.modules:
        os.environ["RAY_AUTH_MODE"] = "token"
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    # Ray reads the token once a process, so the file has to stay for as long as the process.
    token = guarded_folder() / "token"
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)


def stay_on_loopback() -> None:
    """Lets nobody but this machine reach a cluster of our own."""
    # By this switch, made for systems whose firewalls ask about every open port, Ray's servers
    # listen on 127.0.0.1 instead of on all addresses. It is read when Ray is imported.
    if "ray" not in sys.modules:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def check_token() -> None:
    """Refuses a cluster that asks nobody who he is, and warns of a token that others can read."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        raise RayUnsafe(
            "RAY_AUTH_MODE=disabled lets everybody who reaches the cluster run programs on it. "
            "Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH for all nodes and for this command, "
            "or use --set ray.address=local."
        )
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if token.is_file() and token.stat().st_mode & 0o077:
        logging.getLogger(__name__).warning(
            "others can read the token of the Ray cluster in %s, and with it run programs there. "
            "Run: chmod 600 %s", token, token,
        )  # fmt: skip
