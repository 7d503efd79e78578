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
    """The folder of an arm's winner, trained with one seed."""

    arm: str
    seed: int
    path: Path

    def load(self) -> "Checkpoint":
        """Reads its checkpoint."""
        # Late: listing winners does not need torch, which takes seconds to import.
        from dml_core.training.checkpoint import load_checkpoint

        return load_checkpoint(self.path / "checkpoint.pt")

    def load_config(self) -> TrialConfig:
        """Reads its configuration from config.json, without the checkpoint."""
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
    """Measurements by metric, arm and seed (or round of the measurement)."""

    scalars: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    curves: dict[str, dict[str, dict[int, Curve]]] = field(default_factory=dict)

    def add_scalar(self, metric: str, arm: str, seed: int, value: float) -> None:
        """Adds one number."""
        self.scalars.setdefault(metric, {}).setdefault(arm, {})[seed] = value

    def add_curve(self, metric: str, arm: str, seed: int, curve: Curve) -> None:
        """Adds one curve."""
        self.curves.setdefault(metric, {}).setdefault(arm, {})[seed] = curve

    def update(self, other: "Measured") -> None:
        """Adds the metrics of another."""
        self.scalars |= other.scalars
        self.curves |= other.curves


def write_measures(measured: Measured, folder: Path) -> Path:
    """Writes measures.json atomically and returns its path."""
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
    """Digest of the study, by which a report recognises its scores."""
    data_hash: str
    split_hash: str
    scores: dict[str, dict[int, dict[str, float]]]
    """By arm, seed and metric."""
    untrained: dict[str, dict[str, float]] = field(default_factory=dict)
    """What no training gives, by name (`bare features`, `pixels`) and metric."""


def collect_scores(study: str, digest: str, winners: Iterable["WinnerScores"]) -> StudyScores:
    """Returns the scores of all winners of a study.

    Raises:
        ValueError: when they were evaluated on different data.
    """
    scores: dict[str, dict[int, dict[str, float]]] = {}
    hashes = set()
    for winner in winners:
        scores.setdefault(winner.arm, {})[winner.seed] = winner.scores
        hashes.add((winner.data_hash, winner.split_hash))
    if len(hashes) != 1:
        raise ValueError(
            f"the winners of study {study} must be evaluated on one dataset and split, or they "
            f"cannot be compared. Got {len(hashes)}. Run the sweep again: dml run {study}"
        )
    ((data_hash, split_hash),) = hashes
    return StudyScores(study, digest, data_hash, split_hash, scores)


def write_scores(scores: StudyScores, folder: Path) -> Path:
    """Writes scores.json atomically and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCORES_FILE
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(scores.__dict__, indent=2, sort_keys=True) + "\n")
    os.replace(temporary, path)
    return path


def read_scores(folder: Path) -> StudyScores:
    """Reads scores.json.

    Raises:
        FileNotFoundError: when there is none; the message names the command that writes it.
    """
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
