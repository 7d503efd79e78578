"""Takes secrets out of texts before anybody sees them: addresses with passwords, keys, tokens."""

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

HIDDEN = "***"
_ADDRESS = re.compile(r"(\b[\w+.-]+://)[^/\s@'\"]+@")
_SECRET_NAMES = re.compile(
    r"SECRET|PASSWORD|PASSWD|TOKEN|API_?KEY|ACCESS_KEY|ACCOUNT_KEY|CREDENTIAL|CONNECTION_STRING"
    r"|AUTH_STRING|PRIVATE_KEY|PASSPHRASE"
)
# A path to a file with a secret is none, and how somebody authenticates is told in errors.
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
    """Lets every log record of this process be redacted before any handler sees it; once."""
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def make_redacted(*arguments: object, **named: object) -> logging.LogRecord:
        record: logging.LogRecord = make(*arguments, **named)
        # Values that do not fit their text are the handlers' to report, as ever.
        with contextlib.suppress(TypeError, ValueError):
            shown = record.getMessage()
            if (clean := redact(shown)) != shown:
                record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0] is not None:
            # Formatters take this text where it is there.
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
        return record

    make_redacted.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)


def _list_secrets(environment: Mapping[str, str]) -> list[str]:
    found = {value for name, value in environment.items() if _is_secret(name)}
    found |= {password for value in environment.values() for password in _passwords_of(value)}
    # Prefect takes user and password in one text.
    found |= {
        value.partition(":")[2] for name, value in environment.items() if "AUTH_STRING" in name
    }
    # The longest first, since one may be a part of another.
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
