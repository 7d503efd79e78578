"""Brings what a trial's process has to say to the driver, which is where people look."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

MESSAGES = "messages"
"""Key of an epoch's report: what was said since the report before, where there is something."""
_LOGGERS = ("dml_core", "tasks")


class _Collector(logging.Handler):
    """Keeps warnings in a list."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a warning."""
        self._messages.append(record.getMessage())


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Yields a list to which the project's own warnings are added within the block.

    A worker's log goes with its cluster, and nobody reads it.
    """
    messages: list[str] = []
    handler = _Collector(messages)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield messages
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)


def take_messages(messages: list[str]) -> dict[str, list[str]]:
    """Returns what goes into the next report, and empties the list."""
    taken = list(messages)
    messages.clear()
    return {MESSAGES: taken} if taken else {}
