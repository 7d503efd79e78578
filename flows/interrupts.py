"""Ctrl-C and SIGTERM: the command stops, cleans up behind itself, and says how to go on."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turns both signals into one clear line and the exit code that shells expect of them."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
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
