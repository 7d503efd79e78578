"""Numbers and curves that were measured on winners, and their file."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dml_core.measures.hardness_bins import Curve

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
