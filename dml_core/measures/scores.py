"""The test scores of a study on disk: scores.json."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

# Whoever reads scores does not evaluate: torch would cost seconds.
if TYPE_CHECKING:
    from dml_core.measures.of_checkpoint import WinnerScores

FILE_NAME = "scores.json"


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
    path = folder / FILE_NAME
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(scores.__dict__, indent=2, sort_keys=True) + "\n")
    os.replace(temporary, path)
    return path


def read_scores(folder: Path) -> StudyScores:
    """Reads scores.json; a missing one says which command makes it."""
    path = folder / FILE_NAME
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
