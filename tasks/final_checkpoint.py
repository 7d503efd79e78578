"""Looks whether an ended trial still has the checkpoint that it ended with."""

import logging
from pathlib import Path

from dml_core.training.checkpoint import DamagedCheckpoint, checkpoint_path, load_checkpoint

LOGGER = logging.getLogger(__name__)


def is_final_whole(folder: Path, *, epochs: int) -> bool:
    """Tells whether a trial's folder has the whole checkpoint of its last epoch."""
    try:
        load_checkpoint(checkpoint_path(folder / "checkpoints", epochs))
    except (DamagedCheckpoint, FileNotFoundError) as error:
        LOGGER.warning("%s Its trial goes on from the checkpoint before.", error)
        return False
    return True
