"""The folders of a sweep's winners, with whose they are."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dml_core.config import TrialConfig, resolve_trial_config

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
