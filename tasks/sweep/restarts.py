"""Decides whether a trial whose worker died gets another one."""

from collections import Counter
from dataclasses import dataclass

PAUSE_SECONDS = 5.0
"""Between two starts of a trial whose workers die before they begin it."""
MAX_VAIN_STARTS = 12
"""Further starts of such a trial. Together they last a minute: Ray may place workers on a lost
node until it misses the node, by default after half a minute."""


@dataclass(frozen=True)
class Verdict:
    """The consequence of a worker's death."""

    is_final: bool
    """Whether the trial has failed."""
    message: str
    """The reason of the failure, or what happens next."""
    pause_seconds: float = 0.0
    """How long the trial waits for another worker."""


class Restarts:
    """The deaths of the workers of each trial.

    A worker that dies within a trial may have died of it, so sweep.max_restarts limits how often
    that happens. A worker that dies before it begins, as on a lost node, says nothing about the
    trial and does not count there.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._begun: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._vain_starts: Counter[str] = Counter()

    def begin(self, trial_id: str) -> None:
        """Records that a worker has begun a trial."""
        self._begun.add(trial_id)
        self._vain_starts.pop(trial_id, None)

    def judge(self, trial_id: str, *, why: str) -> Verdict:
        """Returns the consequence of the death of a trial's worker.

        Args:
            trial_id: the trial.
            why: the reason of the death, in a line; empty if it is unknown.
        """
        last = f" The last time: {why}" if why else ""
        if trial_id in self._begun:
            self._begun.remove(trial_id)
            self._deaths[trial_id] += 1
            if self._deaths[trial_id] <= self._max_restarts:
                return Verdict(False, "It resumes in another one from its last epoch.")
            limit = f"sweep.max_restarts={self._max_restarts}"
            return Verdict(True, f"its worker died, and {limit} did not help.{last}")
        self._vain_starts[trial_id] += 1
        if (starts := self._vain_starts[trial_id]) <= MAX_VAIN_STARTS:
            message = f"It had not begun the trial; another one is tried in {PAUSE_SECONDS:g} s."
            return Verdict(False, message, PAUSE_SECONDS)
        return Verdict(
            True,
            f"{starts} workers in a row died before they began it, {PAUSE_SECONDS:g} s or more "
            f"apart, so the cluster cannot run it. Look at its nodes with `ray status`.{last}",
        )
