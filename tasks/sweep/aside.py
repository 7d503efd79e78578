"""Does work in a thread while this one waits for something else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST_SECONDS = 5.0
"""How long a block that ends by an exception waits for its work aside."""


class _Aside:
    """Calls functions in a thread, one after the other; an error ends the series."""

    def __init__(self, first: Callable[[], Any], later: Callable[[], Any]) -> None:
        self._first = first
        self._later = later
        self._error: BaseException | None = None
        self._has_first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aside", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._first()
            self._has_first.set()
            self._later()
        except BaseException as error:
            self._error = error
        finally:
            self._has_first.set()

    def wait_for_first(self) -> None:
        self._has_first.wait()
        self.raise_error()

    def join(self, timeout_seconds: float | None = None) -> None:
        self._thread.join(timeout_seconds)

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


@contextmanager
def done_aside(
    first: Callable[[], Any], later: Callable[[], Any] = lambda: None
) -> Iterator[Callable[[], None]]:
    """Calls two functions in a thread during the block, one after the other.

    The block ends when both are done, and raises their error. A block that ends by an exception
    waits for a few seconds only: a function may wait for a server that does not answer.

    Args:
        first: the work that the block waits for.
        later: further work; not done after an error.

    Yields:
        A function that waits until the first is done, and raises its error.
    """
    aside = _Aside(first, later)
    try:
        yield aside.wait_for_first
    except BaseException:
        aside.join(LONGEST_SECONDS)
        raise
    aside.join()
    aside.raise_error()
