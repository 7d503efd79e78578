"""Tells errors that pass by themselves from those that a second try meets again."""

from typing import Any

# Errors of files and networks that mean the same a minute later: a wrong name, a missing right.
LASTING = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def is_momentary(task: Any, run: Any, state: Any) -> bool:
    """Returns whether a task's failure may be gone at the next try; a Prefect retry condition.

    A disk or a network that is away for a moment raises OSError. A mistake of the user's is a
    ValueError with advice, which a retry would only delay.
    """
    return isinstance(state.data, OSError) and not isinstance(state.data, LASTING)
