"""Numbers and curves that were measured on a sweep's winners, and their files."""

# P = pairs

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.evaluation.arrays import DoubleArray

if TYPE_CHECKING:
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

BIN_WIDTH = 0.05
"""Of a cosine; fixed, so that the curves of different models meet at the same places."""
MIN_PAIRS = 5
"""Fewer pairs than these say nothing of a bin."""


def average_by_bin(
    hardness: DoubleArray,
    values: DoubleArray,
    *,
    width: float = BIN_WIDTH,
    min_pairs: int = MIN_PAIRS,
) -> Curve:
    """Returns (middle of the bin, mean value) for each bin with enough pairs, in rising order.

    Args:
        hardness: (P,) what is binned; bin n holds n * width up to (n + 1) * width.
        values: (P,) what is averaged.
        width: of a bin.
        min_pairs: bins with fewer are left out.
    """
    bins, codes, counts = np.unique(
        np.floor(hardness / width).astype(np.int64), return_inverse=True, return_counts=True
    )
    means = np.bincount(codes, weights=values, minlength=len(bins)) / np.maximum(counts, 1)
    return [
        (round((int(number) + 0.5) * width, 6), float(mean))
        for number, mean, count in zip(bins, means, counts, strict=True)
        if count >= min_pairs
    ]


FILE_NAME = "measures.json"


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
    path = folder / FILE_NAME
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(asdict(measured), indent=1, sort_keys=True) + "\n")
    os.replace(temporary, path)
    return path
