"""What a call of the benchmarks chooses."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """How much is measured, and on what."""

    short: bool = False
    """Small sizes and one round: the values are compared, the times mean nothing."""
    cars: Path | None = None
    """Cars-196 as a zip file or a folder with one folder a class; None draws images instead."""

    def rounds(self, number: int) -> int:
        """Returns the rounds of a measurement: one where only values are compared."""
        return 1 if self.short else number
