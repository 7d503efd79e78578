"""Settings of a run of the benchmarks."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Sizes and data of a run."""

    short: bool = False
    """Small sizes: results are compared, nothing is timed."""
    cars: Path | None = None
    """Cars-196 as a zip file or a folder with one folder per class; None draws images instead."""
