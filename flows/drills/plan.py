"""Which drill has which fault at which moment: all drawn from one seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice

from dml_core.config.problems import suggest
from flows.drills.fault import Fault
from flows.drills.project import NUM_EPOCHS


@dataclass(frozen=True)
class Moment:
    """A point in a sweep's progress, which comes sooner or later on any machine."""

    ended: int
    """So many trials have ended."""
    epoch: int
    """A trial that runs has finished so many epochs."""

    def __str__(self) -> str:
        return f"{self.ended} ended, next at epoch {self.epoch}"


@dataclass(frozen=True)
class Drill:
    """One drill of a seed; the same numbers always mean the same drill."""

    seed: int
    number: int
    """From 1."""
    fault: str
    moment: Moment

    @property
    def command(self) -> str:
        """What repeats it."""
        return f"dml drill --seed {self.seed} --only {self.number}"

    def chance(self) -> random.Random:
        """Returns the source of the fault's own choices, such as which bit is flipped."""
        return _chance(self.seed, "choices", self.number)


def make_drill(seed: int, number: int, faults: Sequence[Fault]) -> Drill:
    """Returns a drill of a seed.

    Each row of as many drills as there are faults has every fault once, in an order of its own.

    Args:
        seed: of the whole plan.
        number: of the drill, from 1.
        faults: all that there are; which of them are wanted makes no difference to a drill.
    """
    row, place = divmod(number - 1, len(faults))
    order = list(faults)
    _chance(seed, "row", row).shuffle(order)
    chosen, chance = order[place], _chance(seed, "moment", number)
    moment = Moment(chance.randint(0, chosen.latest), chance.randint(1, NUM_EPOCHS * 3 // 4))
    return Drill(seed, number, chosen.name, moment)


def list_drills(
    seed: int, *, count: int, faults: Sequence[Fault], wanted: Sequence[str] = ()
) -> list[Drill]:
    """Returns the first drills of a seed, of the wanted faults alone where some are named.

    Raises:
        ValueError: where a name is no fault.
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


def _chance(seed: int, purpose: str, number: int) -> random.Random:
    # A text as seed is hashed the same way in every process.
    return random.Random(f"{seed}/{purpose}/{number}")  # noqa: S311
