"""The folders of a sweep's winners, with whose they are."""

from dataclasses import dataclass
from pathlib import Path

from dml_core.training.checkpoint import Checkpoint, load_checkpoint


@dataclass(frozen=True)
class WinnerFolder:
    """One arm's winner, trained with one seed."""

    arm: str
    seed: int
    path: Path

    def load(self) -> Checkpoint:
        """Reads its checkpoint."""
        return load_checkpoint(self.path / "checkpoint.pt")


def list_winners(folder: Path) -> list[WinnerFolder]:
    """Returns the `<arm>-seed<k>` folders that have a checkpoint, by arm and seed."""
    found = []
    for checkpoint in folder.glob("*-seed*/checkpoint.pt"):
        arm, _, seed = checkpoint.parent.name.rpartition("-seed")
        found.append(WinnerFolder(arm, int(seed), checkpoint.parent))
    return sorted(found, key=lambda winner: (winner.arm, winner.seed))
