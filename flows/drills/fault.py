"""What a fault of a drill is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.drills.scene import Scene


class DrillFailed(Exception):
    """A promise was broken; the message says which."""


def always_possible() -> str:
    """Returns no reason against a fault."""
    return ""


@dataclass(frozen=True)
class Fault:
    """One way to break a sweep, and to see that it goes on."""

    name: str
    summary: str
    """What happens, in a few words."""
    strike: Callable[["Scene"], str]
    """Breaks a sweep that has been started, brings it to its end, and says how it went on."""
    latest: int = 5
    """Most trials that have ended when it strikes, of eight: something has to be left."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """What else than usual stands in the project's params.yaml."""
    trials_at_once: int = 2
    """How many run side by side; those that one trial shows as well are cheaper with one."""
    stands_alone: bool = False
    """Whether the command starts Ray and a Prefect server of its own; else both are up already."""
    why_not: Callable[[], str] = always_possible
    """Returns why it cannot be done on this machine; an empty text where it can."""
