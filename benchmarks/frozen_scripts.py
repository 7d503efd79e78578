"""The time of plain scripts that train on top of a frozen trunk."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.frozen_subjects import Subject
from benchmarks.plain_runs import PlainRun, run_script


@dataclass(frozen=True)
class ScriptSeconds:
    """Seconds of all runs of a script."""

    running: float
    """Of scripts that run the trunk in every epoch."""
    cached: float
    """Of scripts that read the trunk's features from a file."""


@dataclass(frozen=True)
class Scripts:
    """Sequential runs of a script, one for each trial of a sweep."""

    subject: Subject
    folder: Path
    """Holds the images and the output of the scripts."""
    trials: int
    epochs: int
    size_px: int
    last_block: bool
    """Whether the trunk's last block is trained too."""

    def measure(self) -> ScriptSeconds:
        """Times one epoch with the trunk, and one run with its features in a file."""
        one = self._run(run_epochs=1)
        epoch = one.result["epoch_seconds"][0]
        running = one.seconds - epoch + self.epochs * epoch
        first, later = self.first_cached_seconds, self._run_cached().seconds
        return ScriptSeconds(self.trials * running, first + (self.trials - 1) * later)

    @cached_property
    def first_cached_seconds(self) -> float:
        """Of the run that writes the file, which happens once."""
        return self._run_cached().seconds

    def _run_cached(self) -> PlainRun:
        return self._run(features=self.folder / f"features{int(self.last_block)}.npz")

    def _run(self, **options: object) -> PlainRun:
        return run_script(
            "frozen_trunk",
            self.folder,
            images=self.folder / "images",
            size_px=self.size_px,
            epochs=self.epochs,
            **self.subject.options,
            **({"last_block": True} if self.last_block else {}),
            **options,
        )
