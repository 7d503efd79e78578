"""How a command ends early, in one line: by a signal, or by a mistake that its user can fix."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from tasks.process import note_stop

MISTAKES = (
    ValueError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
"""Errors that a user can fix: reported in one line, without a traceback."""


def hide_mistakes_in_flows() -> None:
    """Stops Prefect from printing mistakes for each task and flow: the command prints them once.

    The run's page shows the cause, and the run's log has the traceback (`dml logs STUDY`).
    """
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if _is_no_mistake not in logger.filters:
            logger.addFilter(_is_no_mistake)


def _is_no_mistake(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], MISTAKES):
        return False
    # This line repeats the exception of an earlier one.
    return not record.getMessage().startswith("Finished in state Failed(")


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turns SIGINT and SIGTERM into one line and the usual exit code."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        note_stop()
        # Prefect would report a crash several times; the user knows of the stop.
        logging.disable(logging.CRITICAL)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException as end:
        # Typer and Prefect turn the interrupt into their own exceptions.
        if not received and not isinstance(end, KeyboardInterrupt):
            raise
        typer.echo("dml: interrupted. The same command resumes it.", err=True)
        raise SystemExit(128 + (received[0] if received else signal.SIGINT)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
