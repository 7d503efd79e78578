"""What plain scripts take for trainings on top of a frozen trunk."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.frozen_subjects import Subject
from benchmarks.plain_runs import PlainRun, run_script


@dataclass(frozen=True)
class ScriptSeconds:
    """What all trainings take by scripts."""

    running: float
    """That run the trunk in every epoch."""
    cached: float
    """That read what it gives from a file."""


@dataclass(frozen=True)
class Scripts:
    """As many scripts as a sweep has trials, one after another."""

    subject: Subject
    folder: Path
    """Has the images, and gets what the scripts write."""
    trials: int
    epochs: int
    size_px: int
    last_stage: bool
    """Whether the trunk's last stage learns too."""

    def measure(self) -> ScriptSeconds:
        """Runs one epoch with the trunk and one training with its features in a file."""
        one = self._run(run_epochs=1)
        epoch = one.result["epoch_seconds"][0]
        running = one.seconds - epoch + self.epochs * epoch
        first, later = self.first_cached_seconds, self._run_cached().seconds
        return ScriptSeconds(self.trials * running, first + (self.trials - 1) * later)

    @cached_property
    def first_cached_seconds(self) -> float:
        """Of the training that writes the file, which happens once."""
        return self._run_cached().seconds

    def _run_cached(self) -> PlainRun:
        return self._run(features=self.folder / f"features{int(self.last_stage)}.npz")

    def _run(self, **options: object) -> PlainRun:
        return run_script(
            "frozen_trunk",
            self.folder,
            images=self.folder / "images",
            size_px=self.size_px,
            epochs=self.epochs,
            **self.subject.options,
            **({"last_stage": True} if self.last_stage else {}),
            **options,
        )
