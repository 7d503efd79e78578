"""The training loop and what it keeps."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.training.checkpoint import Checkpoint, load_checkpoint
    from dml_core.training.in_folder import train_in_folder
    from dml_core.training.trial import run_trial

__all__ = ["Checkpoint", "load_checkpoint", "run_trial", "train_in_folder"]
__getattr__ = import_when_used(
    __name__,
    {
        "checkpoint": ["Checkpoint", "load_checkpoint"],
        "in_folder": ["train_in_folder"],
        "trial": ["run_trial"],
    },
)
