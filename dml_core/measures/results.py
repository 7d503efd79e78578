"""Results of the evaluate stage on disk: scores.json and measures.json."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.config.data import DataBase
from dml_core.trials.journal import read_epochs, selected_score

# Late: a reader of scores does not evaluate, and torch takes seconds to import.
if TYPE_CHECKING:
    from dml_core.training.checkpoint import Checkpoint


CHECKPOINT_FILE = "checkpoint.pt"
GRID_FILE = "retrieval.png"
MAP_FILE = "embedding_map.csv"


@dataclass(frozen=True)
class WinnerFolder:
    """The folder of an arm's winner, trained with one seed."""

    arm: str
    seed: int
    path: Path
    data: DataBase | None = None
    """Where this machine has its data; None where the configuration names them."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.arm}-seed{self.seed}"

    def load(self) -> "Checkpoint":
        """Reads its checkpoint."""
        # Late: listing winners does not need torch, which takes seconds to import.
        from dml_core.training.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(self.path / CHECKPOINT_FILE)
        if self.data is None:
            return checkpoint
        config = checkpoint.config.model_copy(update={"data": self.data})
        return replace(checkpoint, config=config)

    def load_config(self) -> TrialConfig:
        """Reads its configuration from config.json, without the checkpoint."""
        path = self.path / "config.json"
        return resolve_trial_config(json.loads(path.read_text("utf-8")), source=str(path))


def list_winners(folder: Path) -> list[WinnerFolder]:
    """Returns the `<arm>-seed<k>` folders that have a checkpoint, by arm and seed."""
    found = []
    for checkpoint in folder.glob(f"*-seed*/{CHECKPOINT_FILE}"):
        arm, _, seed = checkpoint.parent.name.rpartition("-seed")
        found.append(WinnerFolder(arm, int(seed), checkpoint.parent))
    return sorted(found, key=lambda winner: (winner.arm, winner.seed))


def choose_seed(winners: Iterable[WinnerFolder]) -> WinnerFolder:
    """Returns the winner with the best validation score, the first seed where several have it."""
    return max(winners, key=_score_on_validation)


def _score_on_validation(winner: WinnerFolder) -> tuple[float, int]:
    score = selected_score(read_epochs(winner.path), winner.load_config())
    return (float("-inf") if score is None else score, -winner.seed)


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
        """Adds the measurements of another."""
        for metric, arms in other.scalars.items():
            for arm, values in arms.items():
                self.scalars.setdefault(metric, {}).setdefault(arm, {}).update(values)
        for metric, by_arm in other.curves.items():
            for arm, curves in by_arm.items():
                self.curves.setdefault(metric, {}).setdefault(arm, {}).update(curves)


def write_measures(measured: Measured, folder: Path) -> Path:
    """Writes measures.json atomically and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MEASURES_FILE
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(asdict(measured), indent=1, sort_keys=True) + "\n")
    os.replace(temporary, path)
    return path


@dataclass(frozen=True)
class WinnerScores:
    """The test scores of one arm's winner, trained with one seed."""

    arm: str
    seed: int
    scores: dict[str, float]
    data_hash: str
    split_hash: str


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


def collect_scores(study: str, digest: str, winners: Iterable[WinnerScores]) -> StudyScores:
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
