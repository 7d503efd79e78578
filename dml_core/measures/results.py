"""Results of the evaluate stage on disk: scores.json and measures.json."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dml_core.config import TrialConfig, resolve_trial_config

# Late: a reader of scores does not evaluate, and torch takes seconds to import.
if TYPE_CHECKING:
    from dml_core.measures.model_scores import WinnerScores
    from dml_core.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class WinnerFolder:
    """One arm's winner, trained with one seed."""

    arm: str
    seed: int
    path: Path

    def load(self) -> "Checkpoint":
        """Reads its checkpoint."""
        # Late: torch costs seconds that those do without who only list winners.
        from dml_core.training.checkpoint import load_checkpoint

        return load_checkpoint(self.path / "checkpoint.pt")

    def load_config(self) -> TrialConfig:
        """Reads its configuration alone, which lies beside the checkpoint too."""
        path = self.path / "config.json"
        return resolve_trial_config(json.loads(path.read_text("utf-8")), source=str(path))


def list_winners(folder: Path) -> list[WinnerFolder]:
    """Returns the `<arm>-seed<k>` folders that have a checkpoint, by arm and seed."""
    found = []
    for checkpoint in folder.glob("*-seed*/checkpoint.pt"):
        arm, _, seed = checkpoint.parent.name.rpartition("-seed")
        found.append(WinnerFolder(arm, int(seed), checkpoint.parent))
    return sorted(found, key=lambda winner: (winner.arm, winner.seed))


Curve = list[tuple[float, float]]
"""(x, y) by rising x."""

MEASURES_FILE = "measures.json"


@dataclass
class Measured:
    """By metric, arm and seed (or round of the measurement)."""

    scalars: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    curves: dict[str, dict[str, dict[int, Curve]]] = field(default_factory=dict)

    def add_scalar(self, metric: str, arm: str, seed: int, value: float) -> None:
        """Takes note of one number."""
        self.scalars.setdefault(metric, {}).setdefault(arm, {})[seed] = value

    def add_curve(self, metric: str, arm: str, seed: int, curve: Curve) -> None:
        """Takes note of one curve."""
        self.curves.setdefault(metric, {}).setdefault(arm, {})[seed] = curve

    def update(self, other: "Measured") -> None:
        """Takes over the metrics of another."""
        self.scalars |= other.scalars
        self.curves |= other.curves


def write_measures(measured: Measured, folder: Path) -> Path:
    """Writes measures.json whole or not at all, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MEASURES_FILE
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(asdict(measured), indent=1, sort_keys=True) + "\n")
    os.replace(temporary, path)
    return path


SCORES_FILE = "scores.json"


@dataclass(frozen=True)
class StudyScores:
    """Every metric of every winner on the test classes."""

    study: str
    digest: str
    """Of the study, so that a report knows what it reports."""
    data_hash: str
    split_hash: str
    scores: dict[str, dict[int, dict[str, float]]]
    """By arm, seed and metric."""

    def of_metric(self, metric: str) -> dict[str, dict[int, float]]:
        """Returns one metric by arm and seed; seeds that lack it are left out."""
        return {
            arm: {seed: each[metric] for seed, each in by_seed.items() if metric in each}
            for arm, by_seed in self.scores.items()
        }


def collect_scores(study: str, digest: str, winners: Iterable["WinnerScores"]) -> StudyScores:
    """Returns the scores of all winners of a study.

    Raises:
        ValueError: when they were judged on different data.
    """
    scores: dict[str, dict[int, dict[str, float]]] = {}
    hashes = set()
    for winner in winners:
        scores.setdefault(winner.arm, {})[winner.seed] = winner.scores
        hashes.add((winner.data_hash, winner.split_hash))
    if len(hashes) != 1:
        raise ValueError(
            f"the winners of study {study} must be judged on one dataset and split, or they "
            f"cannot be compared. Got {len(hashes)}. Run the sweep again: dml run {study}"
        )
    ((data_hash, split_hash),) = hashes
    return StudyScores(study, digest, data_hash, split_hash, scores)


def write_scores(scores: StudyScores, folder: Path) -> Path:
    """Writes scores.json whole or not at all, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCORES_FILE
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(scores.__dict__, indent=2, sort_keys=True) + "\n")
    os.replace(temporary, path)
    return path


def read_scores(folder: Path) -> StudyScores:
    """Reads scores.json; a missing one says which command makes it."""
    path = folder / SCORES_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path} does not exist: the study was not evaluated yet. Run: dml run"
        ) from error
    content["scores"] = {
        arm: {int(seed): each for seed, each in by_seed.items()}
        for arm, by_seed in content["scores"].items()
    }
    return StudyScores(**content)
