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
"""What a user can fix: reported in a line, without a traceback."""


def hide_mistakes_in_flows() -> None:
    """Keeps Prefect from printing mistakes, once for each task and flow, which the command prints.

    The run's page shows why it failed, and the traceback is in the run's log (`dml logs STUDY`).
    """
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if _is_no_mistake not in logger.filters:
            logger.addFilter(_is_no_mistake)


def _is_no_mistake(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], MISTAKES):
        return False
    # Repeats the exception that was logged before it.
    return not record.getMessage().startswith("Finished in state Failed(")


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turns both signals into one clear line and the exit code that shells expect of them."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        note_stop()
        # Prefect would report a crash several times; whoever stops a command knows that.
        logging.disable(logging.CRITICAL)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException as end:
        # Typer and Prefect turn the interrupt into exceptions of their own.
        if not received and not isinstance(end, KeyboardInterrupt):
            raise
        typer.echo("dml: interrupted. The same command goes on where it stopped.", err=True)
        raise SystemExit(128 + (received[0] if received else signal.SIGINT)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
