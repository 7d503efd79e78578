"""Priorities of the drivers on one cluster: whose trials get the room that becomes free.

Ray serves requests in the order of their arrival and knows no priorities between jobs. So the
drivers agree among themselves, by an actor on the cluster that knows what each of them needs: one
starts no trial while trials of a higher priority wait. Trials that run are not interrupted.
"""

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LOGGER = logging.getLogger(__name__)

SECONDS_BETWEEN_CALLS = 0.5
FORGOTTEN_AFTER_SECONDS = 10.0
"""A driver that was silent for so long does not count: it is dead, or its cluster overloaded."""
_NAME, _NAMESPACE = "dml-priorities", "dml"
_TIMEOUT_SECONDS = 5.0


@dataclass
class Board:
    """What the drivers of a cluster need; an actor on the cluster holds one."""

    clock: Callable[[], float] = time.monotonic
    needs: dict[str, tuple[int, bool, float]] = field(default_factory=dict)
    """Of each driver: its priority, whether trials of it wait for room, and when it said so."""

    def note(self, driver: str, priority: int, waits: bool) -> int | None:
        """Records the need of a driver; returns the highest priority above it that waits."""
        now = self.clock()
        self.needs[driver] = (priority, waits, now)
        recent = {
            name: need
            for name, need in self.needs.items()
            if now - need[2] <= FORGOTTEN_AFTER_SECONDS
        }
        self.needs = recent
        above = [theirs for theirs, waits, _ in recent.values() if waits and theirs > priority]
        return max(above, default=None)

    def leave(self, driver: str) -> bool:
        """Removes a driver; returns whether none is left."""
        self.needs.pop(driver, None)
        return not self.needs


class Turns:
    """Whether this driver may start trials now, by its priority and the needs of the others."""

    def __init__(
        self,
        priority: int,
        *,
        find_board: Callable[[bool], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares a driver's turns.

        Args:
            priority: `ray.priority`.
            find_board: returns the board; None if there is none and it shall not be made.
            clock: returns seconds.
        """
        self.waits = False
        """Whether trials of this driver wait for room."""
        self.give_way: Callable[[], None] = lambda: None
        """Releases the room that this driver holds and does not use."""
        self._priority = priority
        self._find_board = find_board
        self._clock = clock
        self._driver = uuid.uuid4().hex
        self._next_call = -float("inf")
        self._above: int | None = None

    def may_start(self) -> bool:
        """Returns whether no trial of a higher priority waits; asks twice a second at most."""
        if self._clock() >= self._next_call:
            self._next_call = self._clock() + SECONDS_BETWEEN_CALLS
            self._ask()
        return self._above is None

    def _ask(self) -> None:
        # Drivers of the usual priority alone need no board.
        board = self._find_board(self._priority != 0)
        above = board.note(self._driver, self._priority, self.waits) if board else None
        if above is not None and self._above is None:
            LOGGER.warning(
                "trials of priority %d wait for room on the cluster: this sweep (ray.priority=%d) "
                "starts no further trials meanwhile",
                above, self._priority,
            )  # fmt: skip
        elif above is None and self._above is not None:
            LOGGER.warning("no trials of a higher priority wait any more: this sweep continues")
        self._above = above

    def leave(self) -> None:
        """Withdraws the driver's need, at the end of its sweep."""
        if board := self._find_board(False):
            board.leave(self._driver)


class _RemoteBoard:
    """The board of the cluster; where it does not answer, everybody may start trials."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def note(self, driver: str, priority: int, waits: bool) -> int | None:
        import ray

        try:
            found: int | None = ray.get(
                self._actor.note.remote(driver, priority, waits), timeout=_TIMEOUT_SECONDS
            )
        except ray.exceptions.RayError:
            return None
        return found

    def leave(self, driver: str) -> None:
        import ray

        try:
            if ray.get(self._actor.leave.remote(driver), timeout=_TIMEOUT_SECONDS):
                ray.kill(self._actor)
        except ray.exceptions.RayError:
            return


def find_board_on_cluster(make: bool) -> _RemoteBoard | None:
    """Returns the board of the joined cluster.

    Args:
        make: whether to make one if there is none; otherwise the result is None then.
    """
    import ray

    try:
        if not make:
            return _RemoteBoard(ray.get_actor(_NAME, namespace=_NAMESPACE))
        # It outlives the driver that makes it, and takes no room of trials.
        options = {"name": _NAME, "namespace": _NAMESPACE, "get_if_exists": True}
        maker = ray.remote(Board).options(**options, lifetime="detached", num_cpus=0)
        return _RemoteBoard(maker.remote())
    except (ValueError, ray.exceptions.RayError):
        return None
