"""What a call of the benchmarks chooses."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """How much is measured, and on what."""

    short: bool = False
    """Small sizes: the values are compared and nothing is timed."""
    cars: Path | None = None
    """Cars-196 as a zip file or a folder with one folder a class; None draws images instead."""
