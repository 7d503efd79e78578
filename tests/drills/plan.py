"""The plan of the drills: faults and moments, all drawn from one seed."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from
from itertools import islice
from typing import TYPE_CHECKING, Any

from dml_core.config.problems import suggest
from tests.drills.project import NUM_EPOCHS

if TYPE_CHECKING:
    from tests.drills.scene import Scene


class DrillFailed(Exception):
    """A promise was broken; the message says which."""


@dataclass(frozen=True)
class Fault:
    """One way to break a sweep."""

    name: str
    summary: str
    """The fault in a few words."""
    strike: Callable[["Scene"], str]
    """Starts the sweep, breaks it, brings it to its end, and returns how it recovered."""
    latest: int = 5
    """Most trials of the eight that may have ended when it strikes."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the project's params.yaml, by dotted key."""
    trials_at_once: int = 2
    """Concurrent trials; 1 is cheaper where one trial shows the fault as well."""
    starts_servers: bool = False
    """Whether the command starts its own Ray cluster and Prefect server."""
    why_not: Callable[[], str] = lambda: ""
    """Returns why this machine cannot run it; empty where it can."""


@dataclass(frozen=True)
class Moment:
    """A point in a sweep's progress, which every machine reaches sooner or later."""

    ended: int
    """Trials that have ended."""
    epoch: int
    """Finished epochs of a running trial."""

    def __str__(self) -> str:
        return f"{self.ended} ended, next at epoch {self.epoch}"


@dataclass(frozen=True)
class Drill:
    """One drill of a seed; the same seed and number always mean the same drill."""

    seed: int
    number: int
    """From 1."""
    fault: str
    moment: Moment

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"make drill SEED={self.seed} ONLY={self.number}"

    def choices(self) -> random.Random:
        """Returns the random stream of the fault's choices, such as which bit it flips."""
        return _stream(self.seed, "choices", self.number)


def make_drill(seed: int, number: int, faults: Sequence[Fault]) -> Drill:
    """Returns a drill of a seed.

    Each round of `len(faults)` drills has every fault once, in its own order.

    Args:
        seed: seed of the whole plan.
        number: number of the drill, from 1.
        faults: all known faults; the selection with `wanted` does not change a drill.
    """
    row, place = divmod(number - 1, len(faults))
    order = list(faults)
    _stream(seed, "row", row).shuffle(order)
    chosen, stream = order[place], _stream(seed, "moment", number)
    moment = Moment(stream.randint(0, chosen.latest), stream.randint(1, NUM_EPOCHS * 3 // 4))
    return Drill(seed, number, chosen.name, moment)


def list_drills(
    seed: int, *, count: int, faults: Sequence[Fault], wanted: Sequence[str] = ()
) -> list[Drill]:
    """Returns the first drills of a seed, restricted to the wanted faults if any are named.

    Raises:
        ValueError: if a name is not a fault.
    """
    _check_names(wanted, [fault.name for fault in faults])
    drills: Iterator[Drill] = (make_drill(seed, number, faults) for number in count_from(1))
    return list(islice((d for d in drills if not wanted or d.fault in wanted), count))


def _check_names(wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"--fault must be one of {', '.join(known)}. Got {name!r}.{suggest(name, known)}"
            )


def _stream(seed: int, purpose: str, number: int) -> random.Random:
    # A string seed is hashed the same way in every process.
    return random.Random(f"{seed}/{purpose}/{number}")
