"""Reads the split column of a user's table."""

from collections.abc import Mapping, Sequence

from dml_core.config.data import FolderData
from dml_core.config.problems import suggest
from dml_core.data.records import Role
from dml_core.data.sources.problems import shorten_text
from dml_core.data.sources.table_reading import Table

_ROLES: Mapping[str, Role] = {
    "train": "train",
    "test": "test",
    "query": "query",
    "gallery": "gallery",
}


def read_roles(words: Sequence[str]) -> list[Role | None]:
    """Returns the role that each word names, whatever its case; None for an unknown word."""
    return [_ROLES.get(word.strip().lower()) for word in words]


def role_problems(
    config: FolderData, table: Table, roles: Sequence[Role | None], classes: Sequence[str]
) -> list[str]:
    """Returns a line for each unknown word, and for a split that cannot be evaluated."""
    unknown = [
        f"row {row}, column {config.split_column!r}: must be one of {', '.join(_ROLES)}. "
        f"Got {shorten_text(word)}.{_hint(word)}"
        for row, word, role in zip(
            table.row_numbers(), table.text(config.split_column), roles, strict=True
        )
        if role is None
    ]
    return unknown or [*_unusable(config.split_column, set(roles)), *_shared(roles, classes)]


def _hint(word: str) -> str:
    if word.strip().lower() in ("val", "valid", "validation", "dev"):
        return " Validation classes are taken from train by data.validation_fraction."
    return suggest(word.strip().lower(), _ROLES)


def _unusable(column: str, roles: set[Role | None]) -> list[str]:
    found = ", ".join(sorted(str(role) for role in roles))
    pair = roles & {"query", "gallery"}
    if "train" not in roles:
        return [f"column {column!r} must have rows with train. Found {found}."]
    if "test" in roles and pair:
        return [f"column {column!r} must have test, or query and gallery. Found {found}."]
    if "test" not in roles and len(pair) < 2:
        return [f"column {column!r} must have rows with test, or query and gallery. Found {found}."]
    return []


def _shared(roles: Sequence[Role | None], classes: Sequence[str]) -> list[str]:
    pairs = list(zip(roles, classes, strict=True))
    train = {name for role, name in pairs if role == "train"}
    shared = sorted(train & {name for role, name in pairs if role != "train"})
    return [
        f"class {shorten_text(name)} must be in train or in the test, for the test is on unseen "
        "classes. Found it in both."
        for name in shared
    ]
