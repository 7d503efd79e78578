"""Keeps secrets: removes them from texts, and closes files to other users."""

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

HIDDEN = "***"
_ADDRESS = re.compile(r"(\b[\w+.-]+://)[^/\s@'\"]+@")
_SECRET_NAMES = re.compile(
    r"SECRET|PASSWORD|PASSWD|TOKEN|API_?KEY|ACCESS_KEY|ACCOUNT_KEY|CREDENTIAL|CONNECTION_STRING"
    r"|AUTH_STRING|PRIVATE_KEY|PASSPHRASE"
)
# The path of a file with a secret is no secret, and errors name the mode of authentication.
_NO_SECRET_NAMES = re.compile(r"(_PATH|_FILE|_DIR|_MODE|_EXPIRATION|_TTL)$")
_SHORTEST = 6
"""A value of fewer letters would be found in ordinary words."""


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns a text without users and passwords in addresses and without the secrets in use.

    Secrets in use are values of environment variables whose names speak of one, such as
    AWS_SECRET_ACCESS_KEY or PREFECT_API_KEY, and passwords in addresses that variables hold.
    """
    text = _ADDRESS.sub(rf"\1{HIDDEN}@", text)
    for secret in _list_secrets(environment):
        text = text.replace(secret, HIDDEN)
    return text


def redact_logs() -> None:
    """Redacts every log record of this process before any handler sees it; safe to call twice."""
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def make_redacted(*arguments: object, **named: object) -> logging.LogRecord:
        record: logging.LogRecord = make(*arguments, **named)
        # Handlers report arguments that do not fit the format, as usual.
        with contextlib.suppress(TypeError, ValueError):
            shown = record.getMessage()
            if (clean := redact(shown)) != shown:
                record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0] is not None:
            # Formatters use this text if it is set.
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
        return record

    make_redacted.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)


def _list_secrets(environment: Mapping[str, str]) -> list[str]:
    found = {value for name, value in environment.items() if _is_secret(name)}
    found |= {password for value in environment.values() for password in _passwords_of(value)}
    # Prefect's variable has user and password in one text.
    found |= {
        value.partition(":")[2] for name, value in environment.items() if "AUTH_STRING" in name
    }
    # Longest first, since one may be part of another.
    return sorted((s for s in found if len(s) >= _SHORTEST), key=lambda s: (-len(s), s))


def _is_secret(name: str) -> bool:
    upper = name.upper()
    return bool(_SECRET_NAMES.search(upper)) and not _NO_SECRET_NAMES.search(upper)


def _passwords_of(value: str) -> Iterable[str]:
    if "://" not in value or "@" not in value:
        return
    # A password may hold a slash or a bracket that should have been encoded.
    rest = value.partition("://")[2]
    yield rest.rpartition("@")[0].partition(":")[2]
    with contextlib.suppress(ValueError):
        password = urlsplit(value).password or ""
        yield from (password, unquote(password))


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_owner_only_folder(folder: Path) -> Path:
    """Creates a folder, or closes an existing one, so that only its owner can enter; returns it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return close_to_others(folder)


def make_owner_only_file(path: Path) -> Path:
    """Creates an empty file, or closes an existing one, so that only its owner can read it.

    Call it before a program fills the file, so that others can never read it. SQLite gives the
    files beside a database the mode of the database.
    """
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    return close_to_others(path)


def close_to_others(path: Path) -> Path:
    """Removes all permissions of group and others from an existing path; returns it.

    A path of another user stays as it is.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & ~_OTHERS)
    return path
