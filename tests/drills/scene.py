"""The scene of a fault: a sweep, its drill, and the trials that must not change any more."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.drills.checks import Ended, compare_ended
from tests.drills.plan import Drill, DrillFailed
from tests.drills.sweep import DrilledSweep

BY_ITSELF = "recovered by itself"
BY_COMMAND = "resumed by the same command"
GRACE_SECONDS = 60.0
"""Time for the guardian of a command to end its processes on a busy machine."""


class Scene:
    """One drill as its fault sees it."""

    def __init__(self, drill: Drill, sweep: DrilledSweep) -> None:
        self.drill = drill
        self.sweep = sweep
        self.choices: random.Random = drill.choices()
        self.cleanup = ExitStack()
        """Undone after all checks."""
        self.ended: Ended = {}
        """Trials that had ended when the fault struck."""
        self.hit: list[str] = []
        """Trials that ran when the fault struck."""

    @property
    def folder(self) -> Path:
        """The project."""
        return self.sweep.folder

    def reach_moment(self, is_training: Callable[[], Any] | None = None) -> None:
        """Waits for the drill's moment, and records which trials have ended and which run.

        Args:
            is_training: returns whether there is a process to hit; default: any that trains.
        """
        moment, is_training = self.drill.moment, is_training or self.sweep.trial_workers
        self.sweep.wait_for(
            lambda: (
                len(self.sweep.ended()) >= moment.ended
                and any(epochs >= moment.epoch for epochs in self.sweep.running().values())
                and is_training()
            ),
            f"the moment ({moment})",
        )
        self.record_trials()

    def record_trials(self) -> None:
        """Records the ended trials, which must not change from now on."""
        ended = self.sweep.ended()
        self.check(*compare_ended(self.ended, ended))
        self.ended, self.hit = ended, sorted(self.sweep.running())

    def finish(self) -> str:
        """Waits for the command, which must recover and end with 0."""
        self.sweep.finish()
        self.check(*compare_ended(self.ended, self.sweep.ended()))
        return BY_ITSELF

    def resume(self) -> str:
        """Runs the same command again, which must resume and end with 0."""
        self.check_processes_gone()
        self.check(*compare_ended(self.ended, self.sweep.ended()))
        self.sweep.start()
        self.finish()
        return BY_COMMAND

    def check_processes_gone(self) -> None:
        """Fails if the ended command left a process."""
        left = self.sweep.family.left(seconds=GRACE_SECONDS)
        self.check(*[f"the process {name} is left" for name in left])

    def check_printed(self, text: str) -> None:
        """Fails if the command did not print a text."""
        if text not in self.sweep.printed:
            raise DrillFailed(f"the command did not print {text!r}: {self.sweep.last_words()}")

    def check(self, *problems: str) -> None:
        """Fails if there is a problem."""
        if problems:
            raise DrillFailed("; ".join(problems))
