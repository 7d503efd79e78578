"""What a check says: how something is, and what to do about it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tasks.redaction import HIDDEN, redact

State = Literal["ok", "warning", "broken"]

_SHORTEST_SECRET = 4
"""Shorter values, such as 1 or on, would be struck out of every sentence."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    """What it is about: python, versions, ray, gpu, data, disk, memory, prefect, mlflow, dvc."""
    state: State
    """broken: a run would fail or give something else than it should. warning: it may."""
    message: str
    remedy: str = ""
    """What to do; empty only where all is well."""

    def __post_init__(self) -> None:
        """Strikes out credentials, and holds that whatever is not well has a remedy."""
        assert self.remedy or self.state == "ok", f"no remedy for {self.subject}: {self.message}"
        object.__setattr__(self, "message", hide_secrets(self.message))
        object.__setattr__(self, "remedy", hide_secrets(self.remedy))


def ok(subject: str, message: str) -> Finding:
    """Returns that something is as it should be."""
    return Finding(subject, "ok", message)


def warning(subject: str, message: str, remedy: str) -> Finding:
    """Returns that something may lead to trouble."""
    return Finding(subject, "warning", message, remedy)


def broken(subject: str, message: str, remedy: str) -> Finding:
    """Returns that something does not work."""
    return Finding(subject, "broken", message, remedy)


def hide_secrets(text: str, *, environment: Mapping[str, str] = os.environ) -> str:
    """Returns a text without secrets, wherever a library's message may have taken them from."""
    hidden = redact(text, environment)
    # Of user:password the password alone is a secret too.
    for name, value in environment.items():
        password = value.partition(":")[2]
        if name.endswith("AUTH_STRING") and len(password) >= _SHORTEST_SECRET:
            hidden = hidden.replace(password, HIDDEN)
    return hidden


def first_line(error: BaseException, *, length: int = 300) -> str:
    """Returns the first line of an error's message, or its name where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:length].rstrip(". ") if lines else type(error).__name__


def in_units(num_bytes: float) -> str:
    """Returns a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"
