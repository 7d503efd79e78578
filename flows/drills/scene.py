"""What a fault works on: a sweep, its drill, and the trials that must not be touched again."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flows.drills.checks import Ended, compare_ended
from flows.drills.fault import DrillFailed
from flows.drills.plan import Drill
from flows.drills.sweep import DrilledSweep

BY_ITSELF = "went on by itself"
BY_COMMAND = "resumed by the same command"
GRACE_SECONDS = 60.0
"""After the end of a command its guardian may need that long on a busy machine."""


class Scene:
    """One drill as its fault sees it."""

    def __init__(self, drill: Drill, sweep: DrilledSweep) -> None:
        self.drill = drill
        self.sweep = sweep
        self.chance: random.Random = drill.chance()
        self.cleanup = ExitStack()
        """What has to be undone once everything is checked."""
        self.ended: Ended = {}
        """The trials that had ended when the fault struck."""
        self.hit: list[str] = []
        """The trials that ran then."""

    @property
    def folder(self) -> Path:
        """The project."""
        return self.sweep.folder

    def reach_moment(self, is_training: Callable[[], Any] | None = None) -> None:
        """Waits for the drill's moment, and takes note of what has ended and what runs.

        Args:
            is_training: whether there is a process to hit; by default any that trains.
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
        self.note()

    def note(self) -> None:
        """Takes note of the trials that have ended, which from now on must stay as they are."""
        ended = self.sweep.ended()
        self.check(*compare_ended(self.ended, ended))
        self.ended, self.hit = ended, sorted(self.sweep.running())

    def finish(self) -> str:
        """Waits for the command, which has to end well by itself."""
        self.sweep.finish()
        self.check(*compare_ended(self.ended, self.sweep.ended()))
        return BY_ITSELF

    def resume(self) -> str:
        """Gives the same command again, which has to end well."""
        self.check_processes_gone()
        self.check(*compare_ended(self.ended, self.sweep.ended()))
        self.sweep.start()
        self.finish()
        return BY_COMMAND

    def check_processes_gone(self) -> None:
        """Fails where a command that has ended left a process behind."""
        left = self.sweep.family.left(seconds=GRACE_SECONDS)
        self.check(*[f"the process {name} is left" for name in left])

    def check_said(self, text: str) -> None:
        """Fails where the command did not print a text."""
        if text not in self.sweep.printed:
            raise DrillFailed(f"it did not say {text!r}: {self.sweep.last_words()}")

    def check(self, *problems: str) -> None:
        """Fails where there is a problem."""
        if problems:
            raise DrillFailed("; ".join(problems))
